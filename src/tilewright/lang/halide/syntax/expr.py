"""Expr: scalar expressions with Halide's typing rules.

To the user, coordinates have type Int(32); the compiler computes indices in int64. So an expression
of type Int(32) is kept in either form and converted on demand: `as_value` for stored values,
`as_index` for indices. (Overflow of Int(32) is undefined in Halide.)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, Final

from tilewright.base import dtypes
from tilewright.base.dtypes import DType, dtype_of
from tilewright.base.errors import InputError
from tilewright.base.numbers import whole
from tilewright.expr import nodes
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import INDEX
from tilewright.ir.node import postorder
from tilewright.lang.halide.syntax.types import Type, meeting_type

_numbers = count()


def unique(prefix: str) -> str:
    """A unique name for an object that the user did not name."""
    return f"{prefix}{next(_numbers)}"


class Expr:
    """A value of one `type`; `node` is its expression (of dtype `type`, or an int64 index)."""

    __slots__ = ("_held", "_type")

    def __init__(self, value: Any, type: DType | None = None) -> None:
        found = value if isinstance(value, nodes.Expr) else as_expr(value).node
        self._held: nodes.Expr = found
        self._type = type or (dtypes.int32 if found.dtype is INDEX else found.dtype)

    @property
    def node(self) -> nodes.Expr:
        """The expression as the compiler sees it."""
        return self._held

    @property
    def dtype(self) -> DType:
        """The dtype, as Halide tells it."""
        return self._type

    def type(self) -> Type:
        """The type, with Halide's questions about it."""
        return Type(self.dtype)

    def __add__(self, other: Any) -> Expr:
        return binary(nodes.Add, self, other)

    def __radd__(self, other: Any) -> Expr:
        return binary(nodes.Add, other, self)

    def __sub__(self, other: Any) -> Expr:
        return binary(nodes.Sub, self, other)

    def __rsub__(self, other: Any) -> Expr:
        return binary(nodes.Sub, other, self)

    def __mul__(self, other: Any) -> Expr:
        return binary(nodes.Mul, self, other)

    def __rmul__(self, other: Any) -> Expr:
        return binary(nodes.Mul, other, self)

    def __truediv__(self, other: Any) -> Expr:
        return divided(self, other)

    def __rtruediv__(self, other: Any) -> Expr:
        return divided(other, self)

    def __floordiv__(self, other: Any) -> Expr:
        return _floored(divided(self, other))

    def __rfloordiv__(self, other: Any) -> Expr:
        return _floored(divided(other, self))

    def __mod__(self, other: Any) -> Expr:
        return remainder(self, other)

    def __rmod__(self, other: Any) -> Expr:
        return remainder(other, self)

    def __neg__(self) -> Expr:
        return Expr(nodes.Neg(self.node), self.dtype)

    def __pow__(self, other: Any) -> Expr:
        return power(self, other)

    def __rpow__(self, other: Any) -> Expr:
        return power(other, self)

    def __lt__(self, other: Any) -> Expr:
        return binary(nodes.Lt, self, other)

    def __le__(self, other: Any) -> Expr:
        return binary(nodes.Le, self, other)

    def __gt__(self, other: Any) -> Expr:
        return binary(nodes.Lt, other, self)

    def __ge__(self, other: Any) -> Expr:
        return binary(nodes.Le, other, self)

    def __eq__(self, other: Any) -> Expr:  # type: ignore[override]
        return binary(nodes.Eq, self, other)

    def __ne__(self, other: Any) -> Expr:  # type: ignore[override]
        return binary(nodes.Ne, self, other)

    __hash__ = object.__hash__

    def __and__(self, other: Any) -> Expr:
        return binary(nodes.And, self, other)

    def __rand__(self, other: Any) -> Expr:
        return binary(nodes.And, other, self)

    def __or__(self, other: Any) -> Expr:
        return binary(nodes.Or, self, other)

    def __ror__(self, other: Any) -> Expr:
        return binary(nodes.Or, other, self)

    def __xor__(self, other: Any) -> Expr:
        return binary(nodes.Xor, self, other)

    def __rxor__(self, other: Any) -> Expr:
        return binary(nodes.Xor, other, self)

    def __invert__(self) -> Expr:
        return Expr(nodes.Not(as_value(self)), self.dtype)

    def __lshift__(self, other: Any) -> Expr:
        return shifted(nodes.Shl, self, other)

    def __rshift__(self, other: Any) -> Expr:
        return shifted(nodes.Shr, self, other)

    def __rlshift__(self, other: Any) -> Expr:
        return shifted(nodes.Shl, other, self)

    def __rrshift__(self, other: Any) -> Expr:
        return shifted(nodes.Shr, other, self)

    def defined(self) -> bool:
        """Whether it is an expression: yes."""
        return True

    def logical_not(self) -> Expr:
        """The opposite of a condition."""
        return ~self

    def __bool__(self) -> bool:
        raise InputError(
            "a Halide expression has no truth value while it is built",
            hint="use select, &, |, ~",
        )

    def __repr__(self) -> str:
        return repr(self.node)


def spread(index: Sequence[Expr], count: int, make: Any) -> tuple[Expr, ...]:
    """An index of `count` dimensions, with `make(n)` for each one that `_` expands to."""
    found: list[Expr] = []
    for part in index:
        if isinstance(part.node, nodes.Var) and part.node.name == "_":
            found += [make(n) for n in range(count - len(index) + 1)]
        else:
            found.append(part)
    return tuple(found)


def constant(value: Any) -> int:
    """A number as an int. Raises InputError for an expression that is none."""
    if isinstance(value, Expr):
        value = value.node
    if isinstance(value, nodes.Const):
        value = value.value
    number = whole(value)
    if number is None:
        raise InputError(
            f"expected a constant integer, not {value!r}",
            hint="sizes are known when compiling",
        )
    return number


def as_expr(value: Any) -> Expr:
    """An Expr of a number, or of an object that represents one."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, bool):
        return Expr(nodes.const(value, dtypes.bool_))
    if hasattr(value, "__index__"):
        return Expr(nodes.const(value.__index__(), INDEX), dtypes.int32)
    if isinstance(value, float) or hasattr(value, "__float__"):
        return Expr(nodes.const(float(value), dtypes.float32))
    raise InputError(
        f"{value!r} is not a Halide expression", hint="expected a number or an Expr"
    )


def as_value(e: Expr) -> nodes.Expr:
    """The node in the dtype of the expression's type."""
    if e.dtype is dtypes.int32:
        return _narrow(e.node)
    return _to(e, e.dtype)


_ARITHMETIC = (
    nodes.Add,
    nodes.Sub,
    nodes.Mul,
    nodes.Min,
    nodes.Max,
    nodes.FloorDiv,
    nodes.Mod,
    nodes.Neg,
    nodes.Select,
)


def _narrow(root: nodes.Expr) -> nodes.Expr:
    """Coordinates as values: arithmetic on them in Int(32), as the user wrote it."""
    if root.dtype is not INDEX:
        return root
    done: dict[Any, Any] = {}
    for node in postorder(root):
        if not isinstance(node, nodes.Expr) or node.dtype is not INDEX:
            done[node] = node
        elif isinstance(node, nodes.Const):
            done[node] = nodes.const(node.value, dtypes.int32)
        elif isinstance(node, nodes.Cast) and node.value.dtype is dtypes.int32:
            done[node] = node.value
        elif isinstance(node, _ARITHMETIC):
            done[node] = node.map(lambda c: done[c])
        else:
            done[node] = nodes.Cast(node, dtypes.int32)
    result: nodes.Expr = done[root]
    return result


def as_index(value: Any) -> nodes.Expr:
    """The node as an index. Raises InputError for a float."""
    e = as_expr(value)
    if not (e.dtype.is_int or e.dtype.is_bool):
        raise InputError(
            f"{e!r} is {e.dtype}, not an integer", hint="cast it with hl.i32"
        )
    return _to(e, INDEX)


def _to(e: Expr, dtype: DType) -> nodes.Expr:
    node = e.node
    if node.dtype is dtype:
        return node
    if isinstance(node, nodes.Const):
        return nodes.const(node.value, dtype)
    return nodes.Cast(node, dtype)


def cast_to(value: Any, dtype: DType) -> Expr:
    """`value` as `dtype`: floats truncate to integers, integers wrap."""
    e = as_expr(value)
    if isinstance(e.node, nodes.Const) and dtype.is_int and e.dtype.is_int:
        number = int(e.node.value.real)
        span = 1 << dtype.bits
        low = int(dtype.min)
        return Expr(nodes.const((number - low) % span + low, dtype), dtype)
    if e.dtype is dtype:
        return e
    return Expr(_to(e, dtype), dtype)


def together(values: Sequence[Any]) -> tuple[list[nodes.Expr], DType]:
    """The operands in one dtype, by Halide's rules, and that dtype.

    Raises InputError where a constant integer does not fit the type of the other operands.
    """
    exprs = [as_expr(v) for v in values]
    typed = [e for e in exprs if not isinstance(e.node, nodes.Const)] or exprs
    type_ = typed[0].dtype
    for e in typed[1:]:
        type_ = meeting_type(type_, e.dtype)
    for e in exprs:
        if isinstance(e.node, nodes.Const):
            if e.dtype.is_float and not type_.is_float:
                type_ = e.dtype
            _check_fits(e.node, type_)
    inside = any(e.node.dtype is INDEX for e in typed) and type_ is dtypes.int32
    return [_to(e, INDEX if inside else type_) for e in exprs], type_


def _check_fits(node: nodes.Const, type_: DType) -> None:
    if type_.is_int and not type_.min <= node.value.real <= type_.max:
        raise InputError(
            f"the constant {node.value} does not fit {type_}, the type of the other operand",
            hint="cast the other operand to a wider type",
        )


def binary(kind: type[nodes.Binary], a: Any, b: Any) -> Expr:
    """An operator on two operands of one type."""
    (lhs, rhs), type_ = together((a, b))
    node = kind(lhs, rhs)
    return Expr(node, dtypes.bool_ if issubclass(kind, nodes.Compare) else type_)


_BACK: Final[dict[type[nodes.Shift], type[nodes.Shift]]] = {
    nodes.Shl: nodes.Shr,
    nodes.Shr: nodes.Shl,
}


def shifted(kind: type[nodes.Shift], a: Any, b: Any) -> Expr:
    """`a` shifted by `b`, in the kind of `a` and the wider of both widths.

    A negative amount shifts the other way. Raises InputError for operands that are not integers.
    """
    value = as_expr(a)
    by = as_expr(b)
    if not (value.dtype.is_int and by.dtype.is_int):
        raise InputError(
            f"a shift of {value.dtype} by {by.dtype}", hint="cast both to integers"
        )
    dtype = value.dtype
    if not isinstance(by.node, nodes.Const):
        bits = max(dtype.bits, by.dtype.bits)
        dtype = dtype_of(f"{'int' if dtype.is_signed else 'uint'}{bits}")
    number = as_value(cast_to(value, dtype))
    amount = as_value(cast_to(by, dtype))
    least, most = bounds(by.node, {})
    if least is not None and least >= 0:
        return Expr(kind(number, amount), dtype)
    backwards = _BACK[kind](number, nodes.Neg(amount))
    if most is not None and most < 0:
        return Expr(backwards, dtype)
    negative = nodes.Lt(as_value(by), nodes.const(0, by.dtype))
    return Expr(nodes.Select(negative, backwards, kind(number, amount)), dtype)


def divided(a: Any, b: Any) -> Expr:
    """`a / b`: IEEE on floats; on integers Euclidean, so that the remainder is not negative."""
    (lhs, rhs), type_ = together((a, b))
    if type_.is_float:
        return Expr(nodes.Div(lhs, rhs), type_)
    if not type_.is_signed or _is_positive(rhs):
        return Expr(nodes.FloorDiv(lhs, rhs), type_)
    zero = nodes.const(0, rhs.dtype)
    flipped = nodes.Neg(nodes.FloorDiv(lhs, nodes.Neg(rhs)))
    return Expr(
        nodes.Select(nodes.Lt(rhs, zero), flipped, nodes.FloorDiv(lhs, rhs)), type_
    )


def remainder(a: Any, b: Any) -> Expr:
    """`a % b`: never negative on integers."""
    (lhs, rhs), type_ = together((a, b))
    if type_.is_float or not type_.is_signed or _is_positive(rhs):
        return Expr(nodes.Mod(lhs, rhs), type_)
    zero = nodes.const(0, rhs.dtype)
    size = nodes.Select(nodes.Lt(rhs, zero), nodes.Neg(rhs), rhs)
    return Expr(nodes.Mod(lhs, size), type_)


def power(base: Any, exponent: Any) -> Expr:
    """`base` to the power `exponent`, of floats; integers are cast to Float(32) first."""
    (a, b), type_ = together((base, exponent))
    if not type_.is_float:
        a, b = (cast_to(Expr(v, type_), dtypes.float32).node for v in (a, b))
        type_ = dtypes.float32
    return Expr(nodes.Call("pow", (a, b)), type_)


def _is_positive(e: nodes.Expr) -> bool:
    return isinstance(e, nodes.Const) and e.value.real > 0


def _floored(e: Expr) -> Expr:
    if e.dtype.is_float:
        return Expr(nodes.Call("floor", (e.node,)), e.dtype)
    return e
