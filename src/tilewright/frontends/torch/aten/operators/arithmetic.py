"""Elementwise functions: arithmetic, comparisons, logic, activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from tilewright.base.dtypes import DType, bool_, int64
from tilewright.frontends.torch.aten.rules import AtenCall, rule
from tilewright.graph.nodes import Value
from tilewright.graph.ops.casts import number_of

# One operand, in the result's type.
_UNARY: Final = {
    "abs": "Abs",
    "acos": "Acos",
    "acosh": "Acosh",
    "asin": "Asin",
    "asinh": "Asinh",
    "atan": "Atan",
    "atanh": "Atanh",
    "ceil": "Ceil",
    "cos": "Cos",
    "cosh": "Cosh",
    "erf": "Erf",
    "exp": "Exp",
    "floor": "Floor",
    "log": "Log",
    "neg": "Neg",
    "reciprocal": "Reciprocal",
    "round": "Round",
    "sigmoid": "Sigmoid",
    "sin": "Sin",
    "sinh": "Sinh",
    "sqrt": "Sqrt",
    "tan": "Tan",
    "tanh": "Tanh",
    "relu": "Relu",
    "selu": "Selu",
    "mish": "Mish",
    "hardswish": "HardSwish",
    "softsign": "Softsign",
}
# Identities on integers.
_ROUNDING: Final = ("ceil", "floor", "round", "trunc")
# Two operands, in the result's type.
_BINARY: Final = {"mul": "Mul", "maximum": "Max", "minimum": "Min"}
# Two operands, in their common type.
_COMPARISONS: Final = {
    "eq": "Equal",
    "lt": "Less",
    "le": "LessOrEqual",
    "gt": "Greater",
    "ge": "GreaterOrEqual",
}
_LOGIC: Final = {"and": "And", "or": "Or", "xor": "Xor"}
_BITS: Final = {"and": "BitwiseAnd", "or": "BitwiseOr", "xor": "BitwiseXor"}


def _unary(op_type: str) -> Callable[[AtenCall], Value]:
    return lambda c: c.op(op_type, c.tensor(dtype=c.dtype))


def _rounded(op_type: str) -> Callable[[AtenCall], Value]:
    def apply(c: AtenCall) -> Value:
        if not c.dtype.is_float:
            return c.tensor()
        if c["decimals"]:
            raise c.refuse(f"it rounds to {c['decimals']} decimals")
        return c.op(op_type, c.tensor())

    return apply


def _binary(op_type: str) -> Callable[[AtenCall], Value]:
    def apply(c: AtenCall) -> Value:
        a = c.tensor("self", c.dtype)
        b = c.tensor("other", c.dtype)
        return c.op(op_type, a, b)

    return apply


def _comparison(op_type: str) -> Callable[[AtenCall], Value]:
    def apply(c: AtenCall) -> Value:
        dtype = c.promoted("self", "other")
        if dtype is bool_ and op_type != "Equal":
            dtype = int64
        a = c.tensor("self", dtype)
        b = c.tensor("other", dtype)
        return c.op(op_type, a, b)

    return apply


def _logic(name: str, bits: bool) -> Callable[[AtenCall], Value]:
    def apply(c: AtenCall) -> Value:
        dtype = bool_ if not bits else c.dtype
        table = _LOGIC if dtype is bool_ else _BITS
        a = c.tensor("self", dtype)
        b = c.tensor("other", dtype)
        return c.op(table[name], a, b)

    return apply


for _name, _op in _UNARY.items():
    rule(f"aten.{_name}")(_rounded(_op) if _name in _ROUNDING else _unary(_op))
for _name, _op in _BINARY.items():
    rule(f"aten.{_name}")(_binary(_op))
for _name, _op in _COMPARISONS.items():
    rule(f"aten.{_name}")(_comparison(_op))
for _name in _LOGIC:
    rule(f"aten.logical_{_name}")(_logic(_name, bits=False))
    rule(f"aten.bitwise_{_name}", f"aten.__{_name}__")(_logic(_name, bits=True))


@rule("aten.pow")
def _power(c: AtenCall) -> Value:
    return c.op("Pow", c.tensor("self", c.dtype), c.tensor("exponent", c.dtype))


@rule("aten.add", "aten.sub", "aten.rsub")
def _sum(c: AtenCall) -> Value:
    """`self + alpha * other`; for booleans a disjunction."""
    name = c.name.split(".")[1]
    a = c.tensor("self", c.dtype)
    b = c.tensor("other", c.dtype)
    if c.dtype is bool_:
        if c.has("alpha"):
            b = c.op("And", b, c.number(c["alpha"]))
        return c.op("Or", a, b)
    scaled = a if name == "rsub" else b
    if c.has("alpha") and c["alpha"] != 1:
        scaled = c.op("Mul", scaled, c.value(c["alpha"], c.dtype))
    if name == "rsub":
        return c.op("Sub", b, scaled)
    return c.op("Add" if name == "add" else "Sub", a, scaled)


@rule("aten.div")
def _quotient(c: AtenCall) -> Value:
    a = c.tensor("self", c.dtype)
    b = c.tensor("other", c.dtype)
    mode = c["rounding_mode"]
    if mode == "floor":
        return floor_divided(c, a, b, c.dtype)
    found = c.op("Div", a, b)
    if mode == "trunc" and c.dtype.is_float:
        return truncated(c, found)
    return found


@rule("aten.floor_divide")
def _floor_divide(c: AtenCall) -> Value:
    a = c.tensor("self", c.dtype)
    b = c.tensor("other", c.dtype)
    return floor_divided(c, a, b, c.dtype)


@rule("aten.trunc", "aten.fix")
def _truncate(c: AtenCall) -> Value:
    if c.dtype.is_float:
        return truncated(c, c.tensor())
    return c.tensor()


@rule("aten.remainder")
def _remainder(c: AtenCall) -> Value:
    a = c.tensor("self", c.dtype)
    b = c.tensor("other", c.dtype)
    return remainder(c, a, b, c.dtype)


@rule("aten.fmod")
def _fmod(c: AtenCall) -> Value:
    return c.op("Mod", c.tensor("self", c.dtype), c.tensor("other", c.dtype), fmod=1)


def truncated(c: AtenCall, x: Value) -> Value:
    """`x` without its fraction; zeros keep the sign."""
    negative = c.op("Less", x, c.value(0, x.dtype))
    return c.op("Where", negative, c.op("Ceil", x), c.op("Floor", x))


def remainder(c: AtenCall, a: Value, b: Value, dtype: DType) -> Value:
    """The remainder with the sign of the divisor, as in Python."""
    if not dtype.is_float:
        return c.op("Mod", a, b)
    rest = c.op("Mod", a, b, fmod=1)
    condition = _against(c, rest, b)
    return c.op("Where", condition, c.op("Add", rest, b), rest)


def floor_divided(c: AtenCall, a: Value, b: Value, dtype: DType) -> Value:
    """The floored quotient, consistent with `Mod`'s remainder, as PyTorch computes it."""
    if not dtype.is_float:
        return c.op("Div", c.op("Sub", a, remainder(c, a, b, dtype)), b)
    zero = c.value(0, dtype)
    rest = c.op("Mod", a, b, fmod=1)
    found = c.op("Div", c.op("Sub", a, rest), b)
    below = _against(c, rest, b)
    found = c.op("Where", below, c.op("Sub", found, c.value(1, dtype)), found)
    nowhere = c.op("Equal", b, zero)
    return c.op("Where", nowhere, c.op("Div", a, b), c.op("Round", found))


def _against(c: AtenCall, rest: Value, b: Value) -> Value:
    """Whether a nonzero remainder and the divisor have different signs."""
    zero = c.value(0, b.dtype)
    other = c.op("Xor", c.op("Less", rest, zero), c.op("Less", b, zero))
    return c.op("And", other, c.op("Not", c.op("Equal", rest, zero)))


# -- one operand, by other functions


@rule("aten.rsqrt")
def _rsqrt(c: AtenCall) -> Value:
    return c.op("Reciprocal", c.op("Sqrt", c.tensor(dtype=c.dtype)))


@rule("aten.sign", "aten.sgn")
def _sign(c: AtenCall) -> Value:
    """0 for NaN; a boolean is its own sign."""
    if c.dtype is bool_:
        return c.tensor()
    x = c.tensor()
    zero = c.number(0)
    above, below = (c.cast(c.op(n, x, zero), c.dtype) for n in ("Greater", "Less"))
    return c.op("Sub", above, below)


@rule("aten.square")
def _square(c: AtenCall) -> Value:
    x = c.tensor()
    return c.op("Mul", x, x)


@rule("aten.log2", "aten.log10")
def _other_log(c: AtenCall) -> Value:
    base = 2 if "log2" in c.name else 10
    found = c.op("Log", c.tensor(dtype=c.dtype))
    return c.op("Mul", found, c.number(1 / math.log(base)))


@rule("aten.exp2")
def _exp2(c: AtenCall) -> Value:
    return c.op("Pow", c.number(2), c.tensor(dtype=c.dtype))


@rule("aten.log1p")
def _log1p(c: AtenCall) -> Value:
    """Accurate near zero: compensates for what `1 + x` rounds off (Kahan, HP-15C handbook).

    Where the quotient has no value, it is that of 1, whose derivative is finite.
    """
    x = c.tensor(dtype=c.dtype)
    one = c.number(1)
    u = c.op("Add", x, one)
    near = c.op("Equal", u, one)
    infinite = c.op("IsInf", u)
    odd = c.op("Or", near, infinite)
    safe = c.op("Where", odd, one, x)
    v = c.op("Add", safe, one)
    product = c.op("Mul", c.op("Log", v), safe)
    away = c.op("Div", product, c.op("Sub", v, one))
    ends = c.op("Where", near, x, c.op("Log", u))
    return c.op("Where", odd, ends, away)


@rule("aten.expm1")
def _expm1(c: AtenCall) -> Value:
    """The inverse of `log1p`, computed likewise."""
    x = c.tensor(dtype=c.dtype)
    one = c.number(1)
    u = c.op("Exp", x)
    less = c.op("Sub", u, one)
    near = c.op("Equal", u, one)
    least = c.op("Equal", less, c.number(-1))
    far = c.op("Or", least, c.op("IsInf", u))
    odd = c.op("Or", near, far)
    safe = c.op("Where", odd, one, x)
    v = c.op("Exp", safe)
    product = c.op("Mul", c.op("Sub", v, one), safe)
    away = c.op("Div", product, c.op("Log", v))
    ends = c.op("Where", near, x, less)
    return c.op("Where", odd, ends, away)


@rule("aten.logical_not")
def _logical_not(c: AtenCall) -> Value:
    return c.op("Not", c.tensor(dtype=bool_))


@rule("aten.bitwise_not")
def _bitwise_not(c: AtenCall) -> Value:
    return c.op("Not" if c.dtype is bool_ else "BitwiseNot", c.tensor())


@rule("aten.ne")
def _ne(c: AtenCall) -> Value:
    dtype = c.promoted("self", "other")
    return c.op("Not", c.op("Equal", c.tensor("self", dtype), c.tensor("other", dtype)))


@rule("aten.isnan", "aten.isinf")
def _is_special(c: AtenCall) -> Value:
    x = c.tensor()
    op_type = "IsNaN" if "isnan" in c.name else "IsInf"
    if x.dtype is not None and not x.dtype.is_float:
        return c.op("Not", c.op("Equal", x, x))
    return c.op(op_type, x)


@rule("aten.atan2")
def _atan2(c: AtenCall) -> Value:
    """By the quotient of the magnitudes, moved into its quadrant; zeros have signs (IEEE 754)."""
    y = c.tensor("self", c.dtype)
    x = c.tensor("other", c.dtype)
    high = c.op("Abs", y)
    wide = c.op("Abs", x)
    same = c.op("Equal", high, wide)  # also for two infinities
    slope = c.op("Where", same, c.number(1), c.op("Div", high, wide))
    none = c.op("And", same, c.op("Equal", high, c.number(0)))
    angle = c.op("Atan", c.op("Where", none, c.number(0), slope))
    left = c.op("Sub", c.number(math.pi), angle)
    condition = _negative(c, x)
    angle = c.op("Where", condition, left, angle)
    condition = _negative(c, y)
    return c.op("Where", condition, c.op("Neg", angle), angle)


def _negative(c: AtenCall, x: Value) -> Value:
    """Whether the sign is set; a zero has the sign of its reciprocal."""
    nothing = c.op("Equal", x, c.number(0))
    signed = c.op("Where", nothing, c.op("Reciprocal", x), x)
    return c.op("Less", signed, c.number(0))


# -- bits


@rule("aten.bitwise_left_shift", "aten.__lshift__")
def _shifted_left(c: AtenCall) -> Value:
    """Products with powers of two, which wrap around; 0 by a count that is no bit's number."""
    x, count, inside = _shift(c)
    zero = c.number(0)
    power = _power_of_two(c, count)
    found = c.op("Mul", x, power)
    return c.op("Where", inside, found, zero)


@rule("aten.bitwise_right_shift", "aten.__rshift__")
def _shifted_right(c: AtenCall) -> Value:
    """Floored quotients by powers of two; the sign alone by a count that is no bit's number.

    Two steps: the largest power of a signed type is out of its range.
    """
    x, count, inside = _shift(c)
    half = c.op("Div", count, c.value(2, int64))
    for part in (half, c.op("Sub", count, half)):
        power = _power_of_two(c, part)
        rest = c.op("Mod", x, power)
        less = c.op("Sub", x, rest)
        x = c.op("Div", less, power)
    zero = c.number(0)
    given = c.tensor(dtype=c.dtype)
    negative = c.op("Less", given, zero)
    signs = c.op("Where", negative, c.number(-1), zero)
    return c.op("Where", inside, x, signs)


def _shift(c: AtenCall) -> tuple[Value, Value, Value]:
    """The shifted numbers, the counts, and which of these are below the number of bits."""
    if c.dtype.is_float or c.dtype is bool_:
        raise c.refuse(f"it shifts {c.dtype.name}")
    x = c.tensor("self", c.dtype)
    count = c.tensor("other", c.dtype)
    zero = c.number(0)
    last = c.number(c.dtype.bits - 1)
    above = c.op("GreaterOrEqual", count, zero)
    below = c.op("LessOrEqual", count, last)
    inside = c.op("And", above, below)
    kept = c.op("Where", inside, count, zero)
    places = c.cast(kept, int64)
    return x, places, inside


def _power_of_two(c: AtenCall, count: Value) -> Value:
    powers = [1 << n for n in range(c.dtype.bits)]
    wide = np.array(powers, np.uint64)
    table = c.build.constant(wide.astype(c.dtype.numpy))
    return c.op("Gather", table, count, axis=0)


@rule("aten.signbit")
def _sign_bit(c: AtenCall) -> Value:
    x = c.tensor()
    if x.dtype is bool_:
        return c.op("And", x, c.op("Not", x))
    if x.dtype is not None and x.dtype.is_float:
        integers = {16: "int16", 32: "int32", 64: "int64"}[x.dtype.bits]
        x = c.op("BitCast", x, to=number_of(integers))
    return c.op("Less", x, c.value(0, x.dtype))


@rule("aten.fmax", "aten.fmin")
def _number_of_two(c: AtenCall) -> Value:
    """The larger or smaller one, of which NaN is neither."""
    a = c.tensor("self", c.dtype)
    b = c.tensor("other", c.dtype)
    found = c.op("Max" if "fmax" in c.name else "Min", a, b)
    if not c.dtype.is_float:
        return found
    none = c.op("IsNaN", a)
    found = c.op("Where", none, b, found)
    none = c.op("IsNaN", b)
    return c.op("Where", none, a, found)


@rule("aten.angle")
def _angle(c: AtenCall) -> Value:
    """Of real numbers: pi if they are negative, else 0; NaN for NaN."""
    x = c.tensor(dtype=c.dtype)
    zero = c.number(0)
    half_turn = c.number(math.pi)
    negative = c.op("Less", x, zero)
    found = c.op("Where", negative, half_turn, zero)
    unknown = c.op("IsNaN", x)
    return c.op("Where", unknown, x, found)


# -- choices


@rule(
    "aten.where.self",
    "aten.where.ScalarOther",
    "aten.where.ScalarSelf",
    "aten.where.Scalar",
)
def _where(c: AtenCall) -> Value:
    then = c.tensor("self", c.dtype)
    otherwise = c.tensor("other", c.dtype)
    condition = c.tensor("condition", bool_)
    return c.op("Where", condition, then, otherwise)


@rule("aten.masked_fill")
def _masked_fill(c: AtenCall) -> Value:
    condition = c.tensor("mask")
    return c.op("Where", condition, c.tensor("value", c.dtype), c.tensor())


@rule("aten.clamp", "aten.clamp_min", "aten.clamp_max", "aten.clip", "aten.hardtanh")
def _clamp(c: AtenCall) -> Value:
    if c.has("min_val"):
        low = c["min_val"]
    else:
        low = c["min"]
    if c.has("max_val"):
        high = c["max_val"]
    else:
        high = c["max"]
    x = c.tensor("self", c.dtype)
    if low is not None:
        x = c.op("Max", x, c.value(low, c.dtype))
    if high is None:
        return x
    return c.op("Min", x, c.value(high, c.dtype))


@rule("aten.relu6")
def _relu6(c: AtenCall) -> Value:
    return c.op("Clip", c.tensor(), c.number(0), c.number(6))


@rule("aten.threshold")
def _threshold(c: AtenCall) -> Value:
    x = c.tensor()
    low = c.op("LessOrEqual", x, c.number(c["threshold"]))
    return c.op("Where", low, c.number(c["value"]), x)
