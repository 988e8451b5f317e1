"""Numbers of few bits in words become floats, in fewer instructions than a conversion takes.

`cast(word >> shift & (2**count - 1), float32) - less` is exact in both of these forms:

- an entry of a table, which a permutation of AVX-512 picks by the four low bits of each lane
- with the bits left where they are: a float whose last bits are theirs, and whose exponent gives
  the lowest of them the value 1, less 2 to a power; that is free where something is taken off

Permutations and sums are done by different units, so that the two forms take turns.
"""

from __future__ import annotations

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import float32, int32, uint32
from tilewright.expr.nodes import And, Cast, Const, Expr, Shr, Sub
from tilewright.targets.llvm.emit_ops import Operations
from tilewright.targets.llvm.emit_text import LlvmValue, integer, real
from tilewright.targets.llvm.processor import AVX512, Processor

WORD = 32  # bits
MOST = 8  # bits of a number
ENTRIES = 16  # of a table, as many as a register of AVX-512 has lanes
HALF = 16  # bits: where the lower half of a word ends; both fit the fraction of a float
FRACTION, BIAS = 23, 127  # of a float32: bits, and the exponent of 1.0
LARGEST = 1 << 16  # of what is taken off: with 2 to the power it is a float32 too


@dataclass(frozen=True, slots=True)
class Bits:
    """`cast(shifted & (2**count - 1), float32) - less`, where `shifted` is `word >> shift`.

    less: None if nothing is subtracted.
    """

    shifted: Expr
    word: Expr
    shift: Expr
    count: int
    less: float | None

    def in_table(self, machine: Processor, shift: int, lanes: int) -> bool:
        """Whether the number at bit `shift` is looked up in a table."""
        able = machine.has(AVX512) and lanes == ENTRIES and 1 << self.count <= ENTRIES
        return able and (self.less is None or shift // self.count % 2 == 0)


def few_bits(e: Expr) -> Bits | None:
    """How `e` extracts a number of at most 8 bits from a word; None if it does not."""
    less = _whole(e.rhs) if isinstance(e, Sub) else None
    real = e.lhs if isinstance(e, Sub) and less is not None else e
    if not isinstance(real, Cast) or real.dtype is not float32:
        return None
    if not isinstance(real.value, And) or real.value.dtype not in (int32, uint32):
        return None
    shifted, mask = real.value.lhs, real.value.rhs
    if not isinstance(shifted, Shr) or not isinstance(mask, Const):
        return None
    count = int(mask.value.real).bit_length()
    if not 1 <= count <= MOST or mask.value != (1 << count) - 1:
        return None
    return Bits(shifted, shifted.lhs, shifted.rhs, count, less)


def _whole(e: Expr) -> float | None:
    """A small whole number that is a float32 constant."""
    if not isinstance(e, Const) or e.dtype is not float32:
        return None
    number = float(e.value.real)
    return number if number.is_integer() and abs(number) <= LARGEST else None


def from_table(ops: Operations, index: LlvmValue, b: Bits) -> LlvmValue:
    """The table entry of each lane; entries repeat, so bits above the number's do not matter."""
    numbers = np.arange(ENTRIES) % (1 << b.count) - (b.less or 0.0)
    entries = ", ".join(f"float {real(float(n)).text}" for n in numbers)
    full = f"<{ENTRIES} x float>"
    call = f"call {full} @llvm.x86.avx512.permvar.sf.512({full} <{entries}>, {index.typed})"
    return ops.w.ins(call, "float", ENTRIES)


def in_place(ops: Operations, half: LlvmValue, shift: int, b: Bits) -> LlvmValue:
    """The number that starts at bit `shift` of the lower halves of words."""
    w, less = ops.w, float(1 << (FRACTION - shift)) + (b.less or 0.0)
    exponent = BIAS + FRACTION - shift
    mask = integer(((1 << b.count) - 1) << shift, "i32")
    found = w.binary(
        "or", w.binary("and", half, mask), integer(exponent << FRACTION, "i32")
    )
    return w.binary("fsub", w.convert("bitcast", found, "float"), real(less))
