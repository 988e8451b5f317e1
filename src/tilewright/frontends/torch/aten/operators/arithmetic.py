"""Elementwise functions: arithmetic, comparisons, logic, activations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import numpy as np

from tilewright.base.dtypes import bool_, int64
from tilewright.frontends.torch.aten.rules import AtenCall, rule
from tilewright.frontends.torch.aten.terms import argument, operands
from tilewright.frontends.torch.aten.wide import (
    in_float32,
    with_rounded_numbers,
    with_whole_numbers,
)
from tilewright.graph.nodes import Value
from tilewright.graph.ops.dtype_numbers import number_of
from tilewright.graph.ops.terms import TensorTerm

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
    "_neg_view": "Neg",
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
        if not c["decimals"]:
            return c.op(op_type, c.tensor())
        return to_decimals(c)

    @in_float32
    def to_decimals(c: AtenCall) -> Value:
        x, digits = argument(c), int(c["decimals"])
        scale = x.of(10.0 ** abs(digits))
        if digits < 0:
            return ((x / scale).op(op_type) * scale).value
        return ((x * scale).op(op_type) / scale).value

    return apply


def _binary(op_type: str) -> Callable[[AtenCall], Value]:
    def apply(c: AtenCall) -> Value:
        a, b = operands(c)
        return a.op(op_type, b).value

    return apply


def _comparison(op_type: str) -> Callable[[AtenCall], Value]:
    def apply(c: AtenCall) -> Value:
        dtype = c.promoted("self", "other")
        if dtype is bool_ and op_type != "Equal":
            dtype = int64
        a = argument(c, "self", dtype)
        b = argument(c, "other", dtype)
        return a.op(op_type, b).value

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
    rule(f"aten.{_name}")(with_whole_numbers(_binary(_op)))
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
    """`self + alpha * other`, rounded once; for booleans a disjunction."""
    scaled = c.has("alpha") and c["alpha"] not in (1, -1)
    apply = with_rounded_numbers(_summed) if scaled else _summed
    return apply(c)


def _summed(c: AtenCall) -> Value:
    name = c.name.split(".")[1]
    a, b = operands(c)
    if c.dtype is bool_:
        if c.has("alpha"):
            b = b & b.of(c["alpha"])
        return (a | b).value
    if name == "rsub":
        a, b = b, a
    if c.has("alpha") and c["alpha"] != 1:
        b = b * argument(c, "alpha")
    found = a + b if name == "add" else a - b
    return found.value


@rule("aten.div", "aten.true_divide")
@with_whole_numbers
def _quotient(c: AtenCall) -> Value:
    a, b = operands(c)
    mode = c["rounding_mode"]
    if mode == "floor":
        return floor_divided(a, b).value
    found = a / b
    if mode == "trunc" and c.dtype.is_float:
        found = _truncated(found)
    return found.value


@rule("aten.floor_divide")
@with_whole_numbers
def _floor_divide(c: AtenCall) -> Value:
    a, b = operands(c)
    return floor_divided(a, b).value


@rule("aten.trunc", "aten.fix")
def _truncate(c: AtenCall) -> Value:
    if c.dtype.is_float:
        return _truncated(argument(c)).value
    return c.tensor()


@rule("aten.remainder")
def _remainder(c: AtenCall) -> Value:
    a, b = operands(c)
    return remainder_of(a, b).value


@rule("aten.fmod")
def _fmod(c: AtenCall) -> Value:
    a, b = operands(c)
    return a.op("Mod", b, fmod=1).value


def _truncated(x: TensorTerm) -> TensorTerm:
    """`x` without its fraction; zeros keep the sign."""
    return (x < 0).chosen(x.op("Ceil"), x.op("Floor"))


def remainder_of(a: TensorTerm, b: TensorTerm) -> TensorTerm:
    """The remainder with the sign of the divisor, as in Python."""
    if not _is_float(a):
        return a.op("Mod", b)
    rest = a.op("Mod", b, fmod=1)
    return _against(rest, b).chosen(rest + b, rest)


def floor_divided(a: TensorTerm, b: TensorTerm) -> TensorTerm:
    """The floored quotient, consistent with `Mod`'s remainder, as PyTorch computes it."""
    if not _is_float(a):
        return (a - remainder_of(a, b)) / b
    rest = a.op("Mod", b, fmod=1)
    found = (a - rest) / b
    found = _against(rest, b).chosen(found - 1, found)
    return b.equals(0).chosen(a / b, found.op("Round"))


def _against(rest: TensorTerm, b: TensorTerm) -> TensorTerm:
    """Whether a nonzero remainder and the divisor have different signs."""
    other = (rest < 0) ^ (b < 0)
    return other & ~rest.equals(0)


def _is_float(x: TensorTerm) -> bool:
    return x.value.dtype is not None and x.value.dtype.is_float


# -- one operand, by other functions


@rule("aten.rsqrt")
@in_float32
def _rsqrt(c: AtenCall) -> Value:
    return argument(c).op("Sqrt").op("Reciprocal").value


@rule("aten.sign", "aten.sgn")
def _sign(c: AtenCall) -> Value:
    """0 for NaN; a boolean is its own sign."""
    if c.dtype is bool_:
        return c.tensor()
    x = argument(c)
    above = (x > 0).cast(c.dtype)
    below = (x < 0).cast(c.dtype)
    return (above - below).value


@rule("aten.square")
def _square(c: AtenCall) -> Value:
    x = argument(c)
    return (x * x).value


@rule("aten.log2", "aten.log10")
@in_float32
def _other_log(c: AtenCall) -> Value:
    base = 2 if "log2" in c.name else 10
    found = argument(c).op("Log") * (1 / math.log(base))
    return found.value


@rule("aten.exp2")
def _exp2(c: AtenCall) -> Value:
    x = argument(c)
    return x.of(2).op("Pow", x).value


@rule("aten.log1p")
@in_float32
def _log1p(c: AtenCall) -> Value:
    """Accurate near zero: compensates for what `1 + x` rounds off (Kahan, HP-15C handbook).

    Where the quotient has no value, it is that of 1, whose derivative is finite.
    """
    x = argument(c)
    u = x + 1
    near = u.equals(1)
    odd = near | u.op("IsInf")
    safe = odd.chosen(1, x)
    v = safe + 1
    away = v.op("Log") * safe / (v - 1)
    ends = near.chosen(x, u.op("Log"))
    return odd.chosen(ends, away).value


@rule("aten.expm1")
@in_float32
def _expm1(c: AtenCall) -> Value:
    """The inverse of `log1p`, computed likewise."""
    x = argument(c)
    u = x.op("Exp")
    less = u - 1
    near = u.equals(1)
    far = less.equals(-1) | u.op("IsInf")
    odd = near | far
    safe = odd.chosen(1, x)
    v = safe.op("Exp")
    away = (v - 1) * safe / v.op("Log")
    ends = near.chosen(x, less)
    return odd.chosen(ends, away).value


@rule("aten.logical_not")
def _logical_not(c: AtenCall) -> Value:
    return c.op("Not", c.tensor(dtype=bool_))


@rule("aten.bitwise_not")
def _bitwise_not(c: AtenCall) -> Value:
    return c.op("Not" if c.dtype is bool_ else "BitwiseNot", c.tensor())


@rule("aten.ne")
def _ne(c: AtenCall) -> Value:
    dtype = c.promoted("self", "other")
    a = argument(c, "self", dtype)
    b = argument(c, "other", dtype)
    return (~a.equals(b)).value


@rule("aten.isnan", "aten.isinf")
def _is_special(c: AtenCall) -> Value:
    x = c.tensor()
    op_type = "IsNaN" if "isnan" in c.name else "IsInf"
    if x.dtype is not None and not x.dtype.is_float:
        return c.op("Not", c.op("Equal", x, x))
    return c.op(op_type, x)


@rule("aten.atan2")
@in_float32
def _atan2(c: AtenCall) -> Value:
    """By the quotient of the magnitudes, moved into its quadrant; zeros have signs (IEEE 754)."""
    y, x = operands(c)
    high = abs(y)
    wide = abs(x)
    same = high.equals(wide)  # also for two infinities
    slope = same.chosen(1, high / wide)
    none = same & high.equals(0)
    angle = none.chosen(0, slope).op("Atan")
    angle = is_negative(x).chosen(math.pi - angle, angle)
    return is_negative(y).chosen(-angle, angle).value


@rule("aten.hypot")
@in_float32
def _hypotenuse(c: AtenCall) -> Value:
    """By the quotient of the lengths, whose square cannot overflow; infinite if one of them is."""
    a, b = (abs(x) for x in operands(c))
    longest = a.op("Max", b)
    share = longest.equals(0).chosen(0, a.op("Min", b) / longest)
    found = longest * (1 + share * share).op("Sqrt")
    endless = a.op("IsInf") | b.op("IsInf")
    return endless.chosen(math.inf, found).value


def is_negative(x: TensorTerm) -> TensorTerm:
    """Whether the sign is set; a zero has the sign of its reciprocal."""
    signed = x.equals(0).chosen(x.op("Reciprocal"), x)
    return signed < 0


# -- bits


@rule("aten.bitwise_left_shift", "aten.__lshift__")
def _shifted_left(c: AtenCall) -> Value:
    """Products with powers of two, which wrap around; 0 by a count that is no bit's number."""
    x, count, inside = _shift(c)
    found = x * _power_of_two(c, count)
    return inside.chosen(found, 0).value


@rule("aten.bitwise_right_shift", "aten.__rshift__")
def _shifted_right(c: AtenCall) -> Value:
    """Floored quotients by powers of two; the sign alone by a count that is no bit's number.

    Two steps: the largest power of a signed type is out of its range.
    """
    x, count, inside = _shift(c)
    half = count / 2
    for part in (half, count - half):
        power = _power_of_two(c, part)
        x = (x - x.op("Mod", power)) / power
    given = argument(c)
    signs = (given < 0).chosen(given.of(-1), 0)
    return inside.chosen(x, signs).value


def _shift(c: AtenCall) -> tuple[TensorTerm, TensorTerm, TensorTerm]:
    """The shifted numbers, the counts, and which of these are below the number of bits."""
    if c.dtype.is_float or c.dtype is bool_:
        raise c.refuse(f"it shifts {c.dtype.name}")
    x, count = operands(c)
    inside = (count >= 0) & (count <= c.dtype.bits - 1)
    kept = inside.chosen(count, 0)
    return x, kept.cast(int64), inside


def _power_of_two(c: AtenCall, count: TensorTerm) -> TensorTerm:
    powers = [1 << n for n in range(c.dtype.bits)]
    wide = np.array(powers, np.uint64)
    table = c.build.constant(wide.astype(c.dtype.numpy))
    return TensorTerm(c, table).op("Gather", count, axis=0)


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
    a, b = operands(c)
    found = a.op("Max" if "fmax" in c.name else "Min", b)
    if c.dtype.is_float:
        found = a.op("IsNaN").chosen(b, found)
        found = b.op("IsNaN").chosen(a, found)
    return found.value


@rule("aten.angle")
def _angle(c: AtenCall) -> Value:
    """Of real numbers: pi if they are negative, else 0; NaN for NaN."""
    x = argument(c)
    found = (x < 0).chosen(x.of(math.pi), 0)
    return x.op("IsNaN").chosen(x, found).value


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
    x = argument(c)
    limit: float = c["threshold"]
    return (x <= limit).chosen(c["value"], x).value
