"""print, print_when, require and traces: expressions that report their values while a program runs.

A reported value is a call of a Python function, so programs with such values run in the
interpreter: native code makes no calls. Vectors are reported one element at a time.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final

from tilewright.base.dtypes import DType, bool_
from tilewright.base.errors import ExecutionError, InputError
from tilewright.expr import nodes
from tilewright.expr.functions import FUNCTIONS, Function
from tilewright.ir.node import Node, postorder
from tilewright.lang.halide.syntax.expr import Expr, as_expr, as_value

_PREFIX: Final = "halide.told."
_PLACE: Final = "halide.told.place."
_numbers = count()


def told(
    value: nodes.Expr, others: Sequence[nodes.Expr], tell: Callable[..., None]
) -> nodes.Expr:
    """`value`, with a call of `tell(value, *others)` wherever it is computed.

    The others are evaluated one by one before it, in conditions that are always true, so that each
    keeps its dtype.
    """
    held: list[Any] = [None] * len(others)

    def last(found: Any) -> Any:
        tell(found, *held)
        return found

    def holding(n: int) -> Callable[[Any], bool]:
        def hold(found: Any) -> bool:
            held[n] = found
            return True

        return hold

    result: nodes.Expr = _called(last, value, None)
    for n, other in reversed(list(enumerate(others))):
        result = nodes.Select(_called(holding(n), other, bool_), result, value)
    return result


def _called(
    function: Callable[[Any], Any], value: nodes.Expr, result: DType | None
) -> nodes.Call:
    name = f"{_PREFIX}{next(_numbers)}"
    FUNCTIONS[name] = Function(name, 1, result, function)
    return nodes.Call(name, (value,))


def tells(root: Node) -> bool:
    """Whether some value in it is reported."""
    calls = (n for n in postorder(root) if isinstance(n, nodes.Call))
    return any(c.function.startswith(_PREFIX) for c in calls)


def print(*args: Any) -> Expr:
    """The first argument, which is printed with all others when it is computed."""
    if not args or not isinstance(args[0], Expr):
        raise InputError(
            "print without a value",
            where="print",
            hint="print(value, ...) is a value to be used in a definition",
        )
    value = args[0]
    parts = [a if isinstance(a, str) else as_expr(a) for a in args]
    rest = [as_value(p) for p in parts[1:] if isinstance(p, Expr)]

    def tell(*found: Any) -> None:
        builtins.print(_text(parts, found))

    return Expr(told(as_value(value), rest, tell), value.dtype)


def print_when(condition: Any, *args: Any) -> Expr:
    """The second argument, which is printed with those after it where the condition holds."""
    value = print(*args)
    plain = as_value(args[0])
    return Expr(nodes.Select(as_expr(condition).node, value.node, plain), value.dtype)


def require(condition: Any, value: Any, *message: Any) -> Expr:
    """The value; where the condition does not hold when it is computed, an ExecutionError.

    message: its text, values among it. The error is raised by `realize` and by calls.
    """
    result = as_expr(value)
    parts = [m if isinstance(m, str) else as_expr(m) for m in message]
    rest = [as_value(p) for p in parts if isinstance(p, Expr)]

    def check(found: Any, holds: Any, *told: Any) -> None:
        if not holds:
            text = _text(parts, told) or "a requirement does not hold"
            raise ExecutionError(text, where="require")

    known = as_expr(condition).node
    return Expr(told(as_value(result), [known, *rest], check), result.dtype)


def _text(parts: Sequence[Any], found: Sequence[Any]) -> str:
    """Words and expressions as text; found: the values of the expressions."""
    numbers = iter(found)
    words = []
    for part in parts:
        word = part if isinstance(part, str) else shown(next(numbers))
        words.append(word)
    return " ".join(words)


def traced(
    event: str, name: str, value: nodes.Expr, point: Sequence[nodes.Expr]
) -> nodes.Expr:
    """A value whose Store or Load at a point, x first, is printed as Halide prints it."""

    def tell(found: Any, *at: Any) -> None:
        place = ", ".join(str(int(a)) for a in at)
        builtins.print(f"{event} {name}({place}) = {shown(found)}")

    return told(value, tuple(point), tell)


def located(value: nodes.Expr, point: Sequence[nodes.Expr]) -> nodes.Expr:
    """A value that keeps its coordinates, x first, whatever happens to its loops."""
    for n, coordinate in reversed(list(enumerate(point))):
        name = f"{_PLACE}{n}"
        FUNCTIONS[name] = Function(name, 1, bool_, lambda found: True)
        nothing = nodes.const(0, value.dtype)
        value = nodes.Select(nodes.Call(name, (coordinate,)), value, nothing)
    return value


def point_of(value: nodes.Expr) -> tuple[nodes.Expr, ...] | None:
    """The coordinates that `located` gave a value; None where it gave none."""
    calls = (n for n in postorder(value) if isinstance(n, nodes.Call))
    found = {c.function: c.args[0] for c in calls if c.function.startswith(_PLACE)}
    return tuple(found[name] for name in sorted(found, key=_axis)) if found else None


def _axis(name: str) -> int:
    return int(name.removeprefix(_PLACE))


def shown(number: Any) -> str:
    """A number as C prints it; a double with an exponent."""
    kind = getattr(number, "dtype", None)
    if kind is not None and kind.kind == "f" and kind.itemsize == 8:
        return f"{float(number):e}"
    if isinstance(number, float) or (kind is not None and kind.kind == "f"):
        return f"{float(number):f}"
    return str(int(number))
