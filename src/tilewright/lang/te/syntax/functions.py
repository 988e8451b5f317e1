"""Scalar functions of bodies, by the names that TVM's users know.

Every function of `expr.functions.FUNCTIONS` is here under its name; `ALIASES` adds the other
names. A Python number next to an expression takes the expression's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from tilewright.base.dtypes import bool_, dtype_of, float32
from tilewright.base.errors import InputError
from tilewright.expr import nodes
from tilewright.expr.functions import FUNCTIONS
from tilewright.expr.nodes import INDEX, Bitcast, Const, Expr, Select
from tilewright.lang.te.syntax.matching import alike

ALIASES: Final = {
    "acos": "arccos",
    "acosh": "arccosh",
    "asin": "arcsin",
    "asinh": "arcsinh",
    "atan": "arctan",
    "atan2": "arctan2",
    "atanh": "arctanh",
    "fabs": "abs",
    "nearbyint": "round_even",
    "power": "pow",
    "rint": "round_even",
    "tgamma": "gamma",
}

# Names of the notation for nodes that Python has no operator for (or another meaning).
_BINARY: Final[dict[str, type[nodes.Binary]]] = {
    "rem": nodes.Rem,
    "fmod": nodes.Rem,
    "truncmod": nodes.Rem,
    "truncdiv": nodes.Div,
    "floordiv": nodes.FloorDiv,
    "floormod": nodes.Mod,
    "indexdiv": nodes.FloorDiv,
    "indexmod": nodes.Mod,
    "add": nodes.Add,
    "subtract": nodes.Sub,
    "multiply": nodes.Mul,
    "divide": nodes.Div,
    "div": nodes.Div,
    "shl": nodes.Shl,
    "shr": nodes.Shr,
    "shift_left": nodes.Shl,
    "shift_right": nodes.Shr,
    "bitwise_and": nodes.And,
    "bitwise_or": nodes.Or,
    "bitwise_xor": nodes.Xor,
    "eq": nodes.Eq,
    "ne": nodes.Ne,
}


def const(value: Any, dtype: Any = None) -> Const:
    """A constant; without a dtype an integer is int64, a truth value bool, a float float32."""
    if dtype is not None:
        return nodes.const(value, dtype_of(dtype))
    if isinstance(value, bool):
        return nodes.const(value, bool_)
    return nodes.const(value, INDEX if isinstance(value, int) else float32)


def as_value(x: Any) -> Expr:
    """An expression unchanged, a number as a constant. Raises InputError for anything else."""
    if isinstance(x, Expr):
        return x
    return const(x)


def cast(value: Expr, dtype: Any) -> Expr:
    """`value.astype(dtype)`; TVM's order, `cast(dtype, value)`, is understood too."""
    if isinstance(dtype, Expr):
        value, dtype = dtype, value
    return as_value(value).astype(dtype)


def bitcast(value: Expr, dtype: Any) -> Expr:
    """The bits of `value` as another dtype of the same width: a float as an integer, or back."""
    return Bitcast(as_value(value), dtype_of(dtype))


def if_then_else(condition: Expr, then: Any, otherwise: Any) -> Expr:
    """`then` where the condition holds, else `otherwise`; only the chosen one is read."""
    check_condition(condition, "if_then_else")
    a, b = _alike("if_then_else", (then, otherwise))
    return Select(condition, a, b)


select = if_then_else


def check_condition(value: Any, where: str) -> None:
    """Reject anything but a condition, in particular the Python bool that `==` of two nodes
    returns."""
    if not isinstance(value, Expr):
        raise InputError(
            f"the condition is {value!r}, no expression",
            where=where,
            hint="`==` asks whether two nodes are the same; the expression is a.eq(b)",
        )
    if value.dtype is not bool_:
        raise InputError(
            f"the condition is {value.dtype}, not bool",
            where=where,
            hint="compare, as in x > 0, or x.ne(0)",
        )


def rsqrt(x: Expr) -> Expr:
    """`1 / sqrt(x)`."""
    return 1 / nodes.call("sqrt", as_value(x))


def log10(x: Expr) -> Expr:
    """The logarithm to base 10, as `log(x) / log(10)`: right to two units in the last place."""
    return nodes.call("log", as_value(x)) / math.log(10)


def exp10(x: Expr) -> Expr:
    """`10 ** x`."""
    x = as_value(x)
    return nodes.call("pow", nodes.const(10, x.dtype), x)


def round(x: Expr) -> Expr:
    """To the nearest whole number, halves away from zero (`nearbyint`: halves to even)."""
    x = as_value(x)
    if not x.dtype.is_float:
        return x
    whole = nodes.call("trunc", x)
    away = whole + nodes.call("copysign", nodes.const(1, x.dtype), x)
    return Select(nodes.call("abs", x - whole) < 0.5, whole, away)


def isfinite(x: Expr) -> Expr:
    """Neither infinite nor NaN."""
    x = as_value(x)
    return ~(nodes.call("isnan", x) | nodes.call("isinf", x))


def ceildiv(a: Any, b: Any) -> Expr:
    """`a / b` rounded up, of integers; 0 where b is 0."""
    x, y = _alike("ceildiv", (a, b))
    return x // y + (x % y).ne(0).astype(x.dtype)


def hypot(a: Any, b: Any) -> Expr:
    """`sqrt(a * a + b * b)`."""
    a, b = _alike("hypot", (a, b))
    return nodes.call("sqrt", a * a + b * b)


def logaddexp(a: Any, b: Any) -> Expr:
    """`log(exp(a) + exp(b))`, without overflow."""
    a, b = _alike("logaddexp", (a, b))
    gap = nodes.call("abs", a - b)
    return nodes.Max(a, b) + Select(
        a.eq(b),
        nodes.const(math.log(2), a.dtype),
        nodes.call("log1p", nodes.call("exp", -gap)),
    )


def ldexp(x: Expr, n: Any) -> Expr:
    """`x * 2 ** n`, for a whole n of any dtype."""
    x = as_value(x)
    if isinstance(n, Expr):
        power = n.astype(x.dtype)
    else:
        power = nodes.const(n, x.dtype)
    return x * nodes.call("exp2", power)


def bitwise_not(x: Expr) -> Expr:
    """`~x`."""
    return ~as_value(x)


def likely(condition: Expr) -> Expr:
    """The condition itself: the compiler derives likely branches from bounds."""
    check_condition(condition, "likely")
    return condition


def infinity(dtype: Any) -> Const:
    """Infinity, as a constant of a floating-point dtype."""
    return const(math.inf, dtype)


def min_value(dtype: Any) -> Const:
    """The least finite value of a dtype, as a constant."""
    return const(dtype_of(dtype).min, dtype)


def max_value(dtype: Any) -> Const:
    """The greatest finite value of a dtype, as a constant."""
    return const(dtype_of(dtype).max, dtype)


def _alike(where: str, values: tuple[Any, ...]) -> tuple[Expr, ...]:
    """The values as expressions of one dtype."""
    if any(isinstance(v, Expr) for v in values):
        return alike(where, values)
    return alike(where, (const(values[0]), *values[1:]))


def _function(name: str, target: str) -> Callable[..., Expr]:
    arity = FUNCTIONS[target].arity

    def apply(*args: Any) -> Expr:
        if len(args) != arity:
            raise InputError(
                f"it takes {arity} arguments, {len(args)} given",
                where=name,
                hint=f"as in {name}({', '.join('abc'[:arity])})",
            )
        return nodes.call(target, *_alike(name, args))

    apply.__name__ = name
    apply.__doc__ = f"`{target}` of expressions of one dtype."
    return apply


def _binary(name: str, node: type[nodes.Binary]) -> Callable[..., Expr]:
    def apply(a: Any, b: Any) -> Expr:
        return node(*_alike(name, (a, b)))

    apply.__name__ = name
    apply.__doc__ = f"The {node.__name__} node of two values of one dtype."
    return apply


TABLE: Final[dict[str, Callable[..., Expr]]] = {
    **{name: _function(name, name) for name in FUNCTIONS},
    **{alias: _function(alias, name) for alias, name in ALIASES.items()},
    **{name: _binary(name, node) for name, node in _BINARY.items()},
    **{
        f.__name__: f
        for f in (rsqrt, log10, exp10, round, isfinite, ceildiv, hypot, logaddexp)
    },
    **{
        f.__name__: f
        for f in (ldexp, bitwise_not, likely, infinity, min_value, max_value)
    },
    "reinterpret": lambda dtype, value: bitcast(value, dtype),
}
