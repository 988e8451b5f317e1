"""Tensor intrinsics of processors: a row per hardware call, which emits it.

Operands are where `loops/match.py` found them; what a description fixes (compact strides, dtypes)
is relied on here. Vectors that do not change are kept in registers like any other value.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from hashlib import sha256

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import CompileError
from tilewright.expr.reads import reads_memory
from tilewright.loops.intrinsic import Argument, Extent, Pointer, Stride
from tilewright.loops.nodes import Operand, Unit
from tilewright.targets.cpu.emit_tiles import TileProduct, moved
from tilewright.targets.cpu.emit_transpose import emit_transpose
from tilewright.targets.llvm.emit_check import check_unit
from tilewright.targets.llvm.emit_expr import Expressions
from tilewright.targets.llvm.emit_text import LlvmValue, integer, vector_type
from tilewright.targets.llvm.emit_types import memory_type
from tilewright.targets.llvm.value_numbering import PURE, Info


def emit_intrinsic(x: Expressions, s: Unit) -> None:
    """The instructions of a Unit.

    Raises CompileError for an intrinsic of another machine, missing processor features, an address
    that depends on data, an intrinsic that rounds although exact code is required, or a Unit in a
    vector loop.
    """
    assert s.intrinsic is not None
    call = s.intrinsic.call
    of = s.intrinsic.intrinsic
    missing = [f for f in of.features if not x.machine.has(f)]
    known = _call_text if call.llvm else _CALLS.get(call.name)
    if known is None or (of.target != "cpu" and not call.llvm):
        reason = f"{of.name} is an intrinsic of {of.target or 'no machine'}, not of a processor"
        hint = "the interpreter runs every kernel"
    elif missing:
        reason = (
            f"{of.name} needs {', '.join(missing)}, which this processor does not have"
        )
        hint = "compile for another processor, or schedule without it"
    elif of.tolerance and not x.ops.flags:
        reason, hint = (
            f"{of.name} rounds its own way: {of.rounding}",
            "compile without exact",
        )
    elif x.vector is not None:
        reason, hint = "it is inside a vector loop", "unroll the loop instead"
    elif any(reads_memory(i) for o in s.operands for i in o.index):
        reason, hint = "its address depends on data", "schedule without it"
    else:
        check_unit(x, s)
        known(x, s)
        x.changed((s.operands[-1].buffer,))
        return
    raise CompileError(reason, code="TW-INTRINSIC", where=f"{s!r}", hint=hint)


def _call_text(x: Expressions, s: Unit) -> None:
    """A call of the function that the user wrote, under a name that its text decides."""
    assert s.intrinsic is not None
    call = s.intrinsic.call
    name = f"{call.name}.{sha256(call.llvm.encode()).hexdigest()[:16]}"
    text = re.sub(rf"@{re.escape(call.name)}(?=\()", f"@{name}", call.llvm)
    x.own[name] = text.replace(
        f"define void @{name}(", f"define internal void @{name}("
    )
    args = ", ".join(_passed(x, s, a) for a in call.args)
    x.line(f"call void @{name}({args})")


def _passed(x: Expressions, s: Unit, argument: Argument) -> str:
    assert s.intrinsic is not None
    match argument:
        case Pointer(tensor):
            return _pointer(x, s.operand(tensor)).typed
        case Stride(tensor, axis):
            return f"i64 {s.operand(tensor).strides[axis]}"
        case Extent(dim):
            return f"i64 {s.intrinsic.sizes[dim]}"
        case float():
            return f"double 0x{struct.pack('>d', argument).hex().upper()}"
    return f"i64 {int(argument)}"


def _pointer(x: Expressions, o: Operand) -> LlvmValue:
    return x.access(o.buffer, o.index).pointer


def _held(
    x: Expressions, o: Operand, kind: str, make: Callable[[LlvmValue], LlvmValue]
) -> LlvmValue:
    """What `make` loads at an operand, kept while the memory does not change."""
    info = PURE
    for i in o.index:
        info = info | x.info(i)
    info = info | Info(reads=frozenset((o.buffer,)), risky=True)
    return x.cached((kind, o.buffer, o.index), info, lambda: make(_pointer(x, o)))


# -- dot products of short vectors: 16 lanes, each of 32 bits of narrow elements


@dataclass(frozen=True, slots=True)
class _Dot:
    """`out[i] += sum over k of a[k] * b[i, k]`: a is broadcast, the others are whole vectors."""

    instruction: str
    accumulator: str
    operands: str

    def __call__(self, x: Expressions, s: Unit) -> None:
        a, b, out = s.operands
        left = _held(x, a, self.instruction + " a", lambda p: self._broadcast(x, p))
        right = _held(x, b, self.instruction + " b", lambda p: self._vector(x, p))
        place = _pointer(x, out)
        old = x.ins(
            f"load <16 x {self.accumulator}>, {place.typed}, align 4",
            self.accumulator,
            16,
        )
        arguments = (
            f"{old.typed}, {self.operands} {left.text}, {self.operands} {right.text}"
        )
        new = x.ins(
            f"call {old.full} @{self.instruction}({arguments})", self.accumulator, 16
        )
        x.line(f"store {new.typed}, {place.typed}, align 4")

    def _broadcast(self, x: Expressions, p: LlvmValue) -> LlvmValue:
        word = x.ins(f"load i32, {p.typed}, align 1", "i32")
        return self._as_operand(x, x.splat(word, 16))

    def _vector(self, x: Expressions, p: LlvmValue) -> LlvmValue:
        return self._as_operand(
            x, x.ins(f"load <16 x i32>, {p.typed}, align 1", "i32", 16)
        )

    def _as_operand(self, x: Expressions, v: LlvmValue) -> LlvmValue:
        return x.ins(f"bitcast {v.typed} to {self.operands}", "i32", 16)


@dataclass(frozen=True, slots=True)
class _BlockDot:
    """`out[i] += sum over h, k of a[h, k] * part h of b[i, k]`: 4 signed bytes of a per h."""

    bits: int

    def __call__(self, x: Expressions, s: Unit) -> None:
        a, b, out = s.operands
        words = _held(x, b, "block dot", lambda p: self._load(x, p))
        place, start = _pointer(x, out), _pointer(x, a)
        total = x.ins(f"load <16 x i32>, {place.typed}, align 4", "i32", 16)
        for h in range(8 // self.bits):
            word = x.ins(f"load i32, {moved(x, start, 4 * h).typed}, align 1", "i32")
            parts = (self._part(x, words, h), x.splat(word, 16))
            cast = f"to {vector_type('i8', 64)}"
            bytes_ = (x.ins(f"bitcast {p.typed} {cast}", "i8", 64) for p in parts)
            total = x.call("x86.avx512.vpdpbusd.512", "i32", 16, total, *bytes_)
        x.line(f"store {total.typed}, {place.typed}, align 4")

    def _load(self, x: Expressions, p: LlvmValue) -> LlvmValue:
        return x.ins(f"load <16 x i32>, {p.typed}, align 1", "i32", 16)

    def _part(self, x: Expressions, words: LlvmValue, h: int) -> LlvmValue:
        """Numbers `h` of all bytes; a shift of words leaves bits of neighbors above them."""
        if self.bits == 8:
            return words
        mask = x.splat(integer(0x01010101 * ((1 << self.bits) - 1), "i32"), 16)
        low = x.splat(integer(h * self.bits, "i32"), 16)
        return x.binary("and", x.binary("lshr", words, low) if h else words, mask)


def _interleave(x: Expressions, s: Unit) -> None:
    """`out[i, k] = a[k, i]`: 2 or 4 rows of 16 elements as one vector."""
    a, out = s.operands
    type = memory_type(a.buffer.dtype)
    size = a.buffer.dtype.itemsize
    start = _pointer(x, a)
    step = size * a.strides[0]
    rows = 4 // size
    places = [moved(x, start, n * step) for n in range(rows)]
    parts = [
        x.ins(f"load <16 x {type}>, {p.typed}, align {size}", type, 16) for p in places
    ]
    while len(parts) > 1:  # the first halves' elements, then the second's, take turns
        half = len(parts) // 2
        parts = [
            _alternating(x, p, q)
            for p, q in zip(parts[:half], parts[half:], strict=True)
        ]
    place = _pointer(x, out)
    x.line(f"store {parts[0].typed}, {place.typed}, align {size}")


def _alternating(x: Expressions, p: LlvmValue, q: LlvmValue) -> LlvmValue:
    return x.shuffle(
        p, [n + side * p.lanes for n in range(p.lanes) for side in (0, 1)], q
    )


_CALLS: Mapping[str, Callable[[Expressions, Unit], None]] = {
    "vpdpbusd": _Dot("llvm.x86.avx512.vpdpbusd.512", "i32", "<64 x i8>"),
    "vpdpbusd.4": _BlockDot(4),
    "vpdpbusd.8": _BlockDot(8),
    "interleave": _interleave,
    "transpose": emit_transpose,
    "vdpbf16ps": _Dot("llvm.x86.avx512bf16.dpbf16ps.512", "float", "<32 x bfloat>"),
    **{
        f"{name}{'.add' if adds else ''}": TileProduct(f"llvm.x86.{name}", adds)
        for name in ("tdpbusd", "tdpbssd", "tdpbf16ps")
        for adds in (False, True)
    },
}
