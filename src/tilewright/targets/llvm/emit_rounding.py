"""Quantization: floats rounded to integers of 16 bits at most, in few instructions.

`cast(round_even(x / c) + n)` is one conversion between bounds. The division by a constant becomes a
product and a fused multiply-add if these are proven to yield the same integers (after Brisebarre,
Muller and Raina, "Accelerating correctly rounded floating-point division when the divisor is known
in advance", IEEE Transactions on Computers 53 (8), 2004). Whole registers become bytes by
saturating packs, those of 16 floats by saturating moves. Values that are dequantized at once stay
wide.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType, float32
from tilewright.expr.nodes import Add, Call, Cast, Const, Div, Expr, Sub
from tilewright.targets.llvm.emit_ops import Operations
from tilewright.targets.llvm.emit_text import (
    LlvmValue,
    integer,
    mangle,
    real,
    vector_type,
)
from tilewright.targets.llvm.emit_types import register_type
from tilewright.targets.llvm.processor import Processor, does

LARGEST = 1 << 16  # of an offset
REACH = 60  # binary exponent of a divisor at most, so that no factor underflows
PACKED = 64  # bytes of a register that packs fill
QUARTERS = 4  # registers of 4-byte integers that become one of bytes


@dataclass(frozen=True, slots=True)
class Rounding:
    """`cast(round_even(value / divisor) + offset, target)`.

    factors: `factors` of the divisor; None without a division.
    """

    value: Expr
    offset: int
    target: DType
    divisor: float = 1.0
    factors: tuple[float, float] | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        """The range of `value`; beyond it the result saturates."""
        low, high = _ends(self.target, self.offset)
        return low * self.divisor, high * self.divisor


def rounding(e: Expr, machine: Processor) -> Rounding | None:
    """How `e` rounds to an integer of 16 bits at most; None if it does not.

    Without fused multiply-adds division is left unchanged.
    """
    if not isinstance(e, Cast):
        return None
    if not e.dtype.is_int:
        return None
    if e.dtype.bits > 16:
        return None
    total, offset = e.value, 0
    if isinstance(total, Add):
        number = _whole(total.rhs)
        if number is None:
            return None
        total, offset = total.lhs, number
    if (
        not isinstance(total, Call)
        or total.function != "round_even"
        or total.dtype is not float32
    ):
        return None
    (x,) = total.args
    divisor = _number(x.rhs) if isinstance(x, Div) and machine.has("fma") else None
    if divisor is not None and isinstance(x, Div):
        found = factors(divisor, max(map(abs, _ends(e.dtype, offset))))
        if found is not None:
            return Rounding(
                value=x.lhs,
                offset=offset,
                target=e.dtype,
                divisor=divisor,
                factors=found,
            )
    return Rounding(x, offset, e.dtype)


def _ends(target: DType, offset: int) -> tuple[int, int]:
    """The least and the greatest number that is not clipped once the offset is added."""
    return int(target.min) - offset, int(target.max) - offset


def dequantized(e: Expr, machine: Processor) -> tuple[Rounding, int] | None:
    """The rounding r and the integer n of a float32 `cast(r) - n`."""
    real, less = (e.lhs, _whole(e.rhs)) if isinstance(e, Sub) else (e, 0)
    if less is None:
        return None
    if not isinstance(real, Cast):
        return None
    if real.dtype is not float32:
        return None
    found = rounding(real.value, machine)
    if found is None:
        return None
    return (found, less)


def _whole(e: Expr) -> int | None:
    """A small whole number that is a float32 constant."""
    number = _number(e)
    if number is None:
        return None
    if not number.is_integer():
        return None
    if abs(number) > LARGEST:
        return None
    return int(number)


def _number(e: Expr) -> float | None:
    """A float32 constant, as it is in a register."""
    if (
        not isinstance(e, Const)
        or e.dtype is not float32
        or not isinstance(e.value, float)
    ):
        return None
    return float(np.float32(e.value))


@cache
def factors(divisor: float, most: int) -> tuple[float, float] | None:
    """a and b so that fma(x, a, x * b), rounded to an integer, is x / divisor rounded so.

    For all float32 x whose quotient is at most `most`; None if that is not proven.

    The sum is within 2**-46 of the quotient, relatively. So both round to the same float32 unless
    the quotient is as near to the middle m of two of them; and that is seen in the integer only if
    one of the two is a half. m * divisor has 49 bits: the distance to the nearest x is exact here.
    """
    if not 2.0**-REACH <= divisor <= 2.0**REACH:
        return None
    high = np.float32(1 / divisor)
    low = np.float32((1 - divisor * float(high)) / divisor)
    halves = np.arange(most + 1, dtype=np.float32) + np.float32(0.5)
    around = (np.nextafter(halves, np.float32(end)) for end in (0, np.inf))
    middles = np.concatenate([(halves.astype(float) + x) / 2 for x in around])
    exact = middles * divisor
    apart = np.abs(exact.astype(np.float32) - exact)
    proven = low == 0 or bool((apart > exact * 2.0**-45).all())
    if proven:
        return (float(high), float(low))
    return None


def to_integer(ops: Operations, v: LlvmValue, r: Rounding) -> LlvmValue:
    """The rounding of `v` in its dtype."""
    packs = v.lanes == PACKED and r.target.bits == 8 and abs(r.offset) <= 255
    if packs and ops.machine.has("avx512bw"):
        return _packed(ops, v, r)
    saturates = v.lanes == PACKED // QUARTERS and not r.target.min
    if saturates and ops.machine.has("avx512f"):
        return _saturated(ops, v, r)
    whole = _rounded(ops, v, r)
    if r.offset:
        whole = ops.w.binary("add", whole, integer(r.offset, "i32"))
    return ops.narrowed(v, whole, r.target)


def to_float(ops: Operations, v: LlvmValue, r: Rounding, less: int) -> LlvmValue:
    """The rounding of `v` as float32, less a number."""
    w = ops.w
    whole = _rounded(ops, v, r)
    if r.offset != less:
        whole = w.binary("add", whole, integer(r.offset - less, "i32"))
    if r.target.min:
        whole = w.select(w.compare("fcmp ord", v, v), whole, integer(-less, "i32"))
    return w.convert("sitofp", whole, "float")


def _rounded(ops: Operations, v: LlvmValue, r: Rounding) -> LlvmValue:
    """Clamp and round, without the offset; NaN becomes the lower bound."""
    inside = _quotient(ops, ops.clamped(v, *r.bounds), r)
    if not does(ops.machine, "nearest"):
        return ops.w.convert("fptosi", ops.w.unary("roundeven", inside), "i32")
    name = f"lrint.{mangle('i32', v.lanes)}.{mangle(v.type, v.lanes)}"
    return ops.w.call(name, "i32", v.lanes, inside)


def _quotient(ops: Operations, v: LlvmValue, r: Rounding) -> LlvmValue:
    """`v / divisor`, as `factors` says."""
    if r.factors is None:
        return v
    w, (high, low) = ops.w, (real(f, v.type) for f in r.factors)
    if low.const == 0:
        return w.binary("fmul", v, high)
    operands = w.match(v, high, w.binary("fmul", v, low))
    return w.call(f"fma.{mangle(v.type, v.lanes)}", v.type, v.lanes, *operands)


def _saturated(ops: Operations, v: LlvmValue, r: Rounding) -> LlvmValue:
    """A register of unsigned integers. The conversion returns 2**31 for values out of range, and
    narrowing saturates, so only the lower bound needs a clamp; signed, 2**31 would be the least."""
    low, _ = r.bounds
    whole = _converted(ops, _quotient(ops, ops.at_least(v, low), r))
    if r.offset:
        whole = ops.w.binary("add", whole, integer(r.offset, "i32"))
    inside = ops.w.pair("umin", whole, integer(int(r.target.max), "i32"))
    return ops.w.convert("trunc", inside, register_type(r.target))


def _packed(ops: Operations, v: LlvmValue, r: Rounding) -> LlvmValue:
    """A register of bytes. The conversion returns the least integer for NaN and for values out of
    range, and packs saturate, so only the upper bound needs a clamp."""
    w, signed, (_, most) = ops.w, bool(r.target.min), r.bounds
    top = real(most, v.type)
    inside = _quotient(ops, w.select(w.compare("fcmp olt", top, v), top, v), r)
    if signed:
        inside = w.select(
            w.compare("fcmp ord", v, v), inside, real(-float(r.offset), v.type)
        )
    lanes = PACKED // QUARTERS
    whole = [
        _converted(ops, w.shuffle(inside, list(range(k, k + lanes))))
        for k in range(0, PACKED, lanes)
    ]
    low, high = (_pair(ops, "packssdw", *whole[n : n + 2], type="i16") for n in (0, 2))
    if r.offset:
        low, high = (
            w.pair("sadd.sat", half, integer(r.offset, "i16")) for half in (low, high)
        )
    packed = _pair(ops, "packsswb" if signed else "packuswb", low, high, type="i8")
    # Packs stay inside groups of 16 bytes: word n of group g belongs at word g of group n.
    words = w.ins(f"bitcast {packed.typed} to <{lanes} x i32>", "i32", lanes)
    order = [QUARTERS * (k % QUARTERS) + k // QUARTERS for k in range(lanes)]
    return w.ins(
        f"bitcast {w.shuffle(words, order).typed} to {packed.full}", "i8", PACKED
    )


def _converted(ops: Operations, v: LlvmValue) -> LlvmValue:
    full = vector_type("i32", v.lanes)
    rest = f"{full} zeroinitializer, i{v.lanes} -1, i32 4"
    call = f"call {full} @llvm.x86.avx512.mask.cvtps2dq.512({v.typed}, {rest})"
    return ops.w.ins(call, "i32", v.lanes)


def _pair(
    ops: Operations, name: str, a: LlvmValue, b: LlvmValue, *, type: str
) -> LlvmValue:
    lanes = a.lanes + b.lanes
    call = f"call <{lanes} x {type}> @llvm.x86.avx512.{name}.512({a.typed}, {b.typed})"
    return ops.w.ins(call, type, lanes)
