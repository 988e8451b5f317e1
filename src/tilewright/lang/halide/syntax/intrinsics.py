"""The functions of Halide's expressions: cast, select, clamp, min, max, exp, ..."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.base import dtypes
from tilewright.base.dtypes import DType, dtype_of
from tilewright.base.errors import InputError
from tilewright.expr import nodes
from tilewright.lang.halide.syntax.expr import (
    Expr,
    as_expr,
    as_value,
    binary,
    cast_to,
    power,
    together,
)
from tilewright.lang.halide.syntax.types import Type, plain


def cast(type: Type | DType, value: Any) -> Expr:
    """`value` as `type`: floats truncate to integers, integers wrap."""
    return cast_to(value, plain(type))


def saturating_cast(type: Type | DType, value: Any) -> Expr:
    """`value` as the integer `type`, its ends where it is beyond them."""
    e = as_expr(value)
    dtype = plain(type)
    if not e.dtype.is_float:
        lo = builtins_max(int(dtype.min), int(e.dtype.min))
        hi = builtins_min(int(dtype.max), int(e.dtype.max))
        e = clamp(e, Expr(nodes.const(lo, e.dtype)), Expr(nodes.const(hi, e.dtype)))
    return cast_to(e, dtype)


builtins_max, builtins_min = max, min


def caster(
    name: str, convert: Callable[[Any, Any], Expr], how: str
) -> Callable[[Any], Expr]:
    """The function of one value that converts to the dtype of that name."""
    dtype = dtype_of(name)

    def to(value: Any) -> Expr:
        return convert(value, dtype)

    to.__doc__ = f"`value` as {dtype}{how}."
    return to


def _casters(*names: str) -> list[Callable[[Any], Expr]]:
    return [caster(name, cast_to, "") for name in names]


u8, u16, u32, u64 = _casters("uint8", "uint16", "uint32", "uint64")
i8, i16, i32, i64 = _casters("int8", "int16", "int32", "int64")
f16, f32, f64 = _casters("float16", "float32", "float64")


def select(
    condition: Any,
    then: Any,
    otherwise: Any,
    *more: Any,
) -> Expr:
    """`then` where `condition`, else `otherwise`; or pairs of condition and value, and a default.

    Raises InputError if a condition is not bool or the number of arguments is even.
    """
    if more:
        if len(more) % 2:
            raise InputError(
                "select takes an odd number of arguments: pairs, then a default"
            )
        otherwise = select(otherwise, *more)
    test = as_expr(condition)
    if not test.dtype.is_bool:
        raise InputError(
            f"the condition {test!r} of a select is {test.dtype}, not bool"
        )
    (a, b), type_ = together((then, otherwise))
    return Expr(nodes.Select(test.node, a, b), type_)


def _many(kind: type[nodes.Binary], name: str) -> Callable[..., Expr]:
    def combine(first: Any, *others: Any) -> Expr:
        result = as_expr(first)
        for other in others:
            result = binary(kind, result, other)
        return result

    combine.__name__ = name
    combine.__doc__ = f"The {name} of two or more values of one type."
    return combine


min = _many(nodes.Min, "min")
max = _many(nodes.Max, "max")


def clamp(value: Any, low: Any, high: Any) -> Expr:
    """`value`, but at least `low` and at most `high`; of the type of `value`."""
    return cast_to(max(min(value, high), low), as_expr(value).dtype)


def abs(value: Any) -> Expr:
    """The absolute value; of a signed integer the unsigned type of its width, as in Halide."""
    e = as_expr(value)
    if e.dtype.is_float:
        return Expr(nodes.Call("abs", (e.node,)), e.dtype)
    if not e.dtype.is_signed:
        return e
    node = as_value(e)
    size = nodes.Select(
        nodes.Lt(node, nodes.const(0, node.dtype)), nodes.Neg(node), node
    )
    return cast_to(Expr(size, e.dtype), dtype_of(f"uint{e.dtype.bits}"))


def absd(a: Any, b: Any) -> Expr:
    """`|a - b|` without overflow; of signed integers the unsigned type of their width."""
    (lhs, rhs), type_ = together((a, b))
    wide = Expr(nodes.Select(nodes.Lt(lhs, rhs), rhs - lhs, lhs - rhs), type_)
    if type_.is_int:
        return cast_to(wide, dtype_of(f"uint{type_.bits}"))
    return wide


def _function(name: str, function: str) -> Callable[[Any], Expr]:
    def apply(value: Any) -> Expr:
        e = as_expr(value)
        if not e.dtype.is_float:
            e = cast_to(e, dtypes.float32)
        return Expr(nodes.Call(function, (e.node,)), e.dtype)

    apply.__name__ = name
    apply.__doc__ = f"{name} of a float; an integer is cast to Float(32) first."
    return apply


sqrt = _function("sqrt", "sqrt")
exp = _function("exp", "exp")
log = _function("log", "log")
sin = _function("sin", "sin")
cos = _function("cos", "cos")
tan = _function("tan", "tan")
asin = _function("asin", "arcsin")
acos = _function("acos", "arccos")
atan = _function("atan", "arctan")
tanh = _function("tanh", "tanh")
asinh = _function("asinh", "arcsinh")
acosh = _function("acosh", "arccosh")
atanh = _function("atanh", "arctanh")
sinh = _function("sinh", "sinh")
cosh = _function("cosh", "cosh")
floor = _function("floor", "floor")
ceil = _function("ceil", "ceil")
round = _function("round", "round_even")
trunc = _function("trunc", "trunc")
erf = _function("erf", "erf")


pow = power


def likely(value: Any) -> Expr:
    """`value`; the hint says nothing to this compiler."""
    return as_expr(value)
