"""Emits tensor intrinsics of a warp: which element is in which thread's register.

Of an array of registers of 32 bits, with `per` numbers in each, thread t = 4*g + q of a warp has

    a    register r: row g + 8*(r % 2), columns from (q + 4*(r / 2)) * per on, r < 4
    b    register r: rows from (q + 4*r) * per on, column g, r < 2
    out  element n:  row g + 8*(n / 2), column 2*q + n % 2, n < 4

(PTX ISA, "Matrix Fragments for mma.m16n8k8", ".m16n8k16", ".m16n8k32"), which is the layout in
which `ldmatrix` loads matrices of 8 rows of 16 bytes. Barriers are placed where a product reads
what other threads wrote, as all threads read all of it. A store counts as a store by the first
thread only: the threads of a warp synchronize around it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import float8_e4m3fn, float8_e5m2
from tilewright.loops.nodes import Operand, Unit
from tilewright.loops.operands import position
from tilewright.targets.cuda.emit_tiles import (
    WORD,
    elements,
    held_elements,
    load_word,
    moved_by,
    number_in_warp,
    place_in_tile,
    pointer_at,
    scaled,
    start_of,
)
from tilewright.targets.cuda.intrinsics import (
    COLUMNS,
    MATRIX_ROW,
    ROWS,
    MatrixLoads,
    matrix_loads,
)
from tilewright.targets.cuda.machine import WARP
from tilewright.targets.llvm.emit_launch import LaunchThread
from tilewright.targets.llvm.emit_text import LlvmValue, integer
from tilewright.targets.llvm.emit_types import memory_type

_PART: Final = 4  # elements of a tile of `mma` that each thread has
_FIRST_BARRIER: Final = 1  # of several warps; 0 is that of the block


@dataclass(frozen=True, slots=True)
class _Product:
    """name: LLVM's of the instruction. register: its type of a factor's. rounded: to tf32."""

    name: str
    register: tuple[str, int] = ("i32", 1)
    rounded: bool = False

    def __call__(self, x: LaunchThread, s: Unit) -> None:
        a, b, out = s.operands
        per = WORD // a.buffer.dtype.itemsize
        part = held_elements(x, out)
        halves = [(ROWS // 2 * (r % 2), 4 * per * (r // 2)) for r in range(4)]
        if a.buffer.scope == "warp":
            words = _own_words(x, a)
        else:
            words = _words(x, a, (0, 1), halves)
        words += _words(x, b, (1, 0), [(0, 4 * per * r) for r in range(2)])
        type = memory_type(out.buffer.dtype)
        factors = [self._factor(x, word).typed for word in words]
        sums = [load_word(x, type, p).typed for p in part]
        made = f"{{ {', '.join([type] * _PART)} }}"
        given = ", ".join([*factors, *sums])
        # Tell LLVM that all threads of the warp have to reach it.
        call = f"call {made} @llvm.nvvm.mma.{self.name}({given}) convergent"
        found = x.ins(call, made)
        for n, p in enumerate(part):
            value = x.ins(f"extractvalue {found.typed}, {n}", type)
            x.line(f"store {value.typed}, {p.typed}, align {WORD}")

    def _factor(self, x: LaunchThread, word: LlvmValue) -> LlvmValue:
        if self.rounded:
            number = x.convert("bitcast", word, "float")
            return x.ins(f"call i32 @llvm.nvvm.f2tf32.rna({number.typed})", "i32")
        type, lanes = self.register
        if lanes == 1:
            return word
        return x.ins(f"bitcast {word.typed} to <{lanes} x {type}>", type, lanes)


def _own_words(x: LaunchThread, o: Operand) -> list[LlvmValue]:
    """A thread's registers of a left factor of 16 bits that the warp holds: two numbers in each."""
    tiles = (held_elements(x, o, right=COLUMNS * n) for n in range(2))
    pairs = [(pointers[0], pointers[2]) for pointers in tiles]
    return [load_word(x, "i32", p) for pair in pairs for p in pair]


def _words(
    x: LaunchThread,
    o: Operand,
    axes: tuple[int, int],
    places: Sequence[tuple[int, int]],
) -> list[LlvmValue]:
    """A thread's registers of a factor. axes: along which it has one element in each, and a run of
    them; places: of the first element of each on these, for the first thread."""
    size = o.buffer.dtype.itemsize
    per = WORD // size
    across, along = (o.strides[axis] for axis in axes)
    by_matrix = matrix_loads(size, (across, along))
    is_shared = o.buffer.scope == "shared"
    if by_matrix is not None and is_shared and _is_multiple(o, MATRIX_ROW // size):
        return _loaded_matrices(x, o, by_matrix, (across, along), places)
    group, number = place_in_tile(x, WARP)
    start = moved_by(x, start_of(x, o), scaled(x, group, across * size))
    start = moved_by(x, start, scaled(x, number, along * WORD))
    is_word = along == 1 and across % per == 0 and _is_multiple(o, per)
    found = []
    for i, k in places:
        first = moved_by(x, start, integer((i * across + k * along) * size))
        found.append(
            load_word(x, "i32", pointer_at(x, o, first))
            if is_word or per == 1
            else _packed(x, o, first, along * size)
        )
    return found


def _loaded_matrices(
    x: LaunchThread,
    o: Operand,
    how: MatrixLoads,
    strides: tuple[int, int],
    places: Sequence[tuple[int, int]],
) -> list[LlvmValue]:
    """Load a thread's registers of a factor by one instruction: thread t passes the address of row
    t % 8 of matrix t / 8."""
    size = o.buffer.dtype.itemsize
    lane = number_in_warp(x)
    row = x.binary("and", lane, integer(7))
    start = moved_by(x, start_of(x, o), scaled(x, row, how.pitch * size))
    count, bit = len(places), 1
    while bit < count:
        i, k = places[bit]
        offset = (i * strides[0] + k * strides[1]) * size
        number = x.binary("lshr", lane, integer(2 + bit.bit_length()))
        number = x.binary("and", number, integer(1))
        start = moved_by(x, start, scaled(x, number, offset))
        bit *= 2
    shared = "ptr addrspace(3)"
    start = pointer_at(x, o, start)
    at = x.ins(f"addrspacecast {start.typed} to {shared}", shared)
    turned = ".trans" if how.is_turned else ""
    name = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{count}{turned}.b16.p3"
    made = f"{{ {', '.join(['i32'] * count)} }}"
    found = x.ins(f"call {made} @{name}({at.typed})", made)
    parts = (x.ins(f"extractvalue {found.typed}, {n}", "i32") for n in range(count))
    return list(parts)


def _is_multiple(o: Operand, of: int) -> bool:
    """Whether an operand begins at a multiple of `of` elements."""
    form = position(o.buffer, o.index)
    return all(c % of == 0 for c in (form.const, *(c for _, c in form.terms)))


def _packed(x: LaunchThread, o: Operand, first: LlvmValue, step: int) -> LlvmValue:
    """Elements that are apart as one word, the first in its low bits."""
    bits = 8 * o.buffer.dtype.itemsize
    word = integer(0, "i32")
    for n in range(WORD // o.buffer.dtype.itemsize):
        p = pointer_at(x, o, moved_by(x, first, integer(n * step)))
        part = x.ins(f"load i{bits}, {p.typed}, align {bits // 8}", f"i{bits}")
        part = x.convert("zext", part, "i32")
        word = x.binary("or", word, x.binary("shl", part, integer(n * bits, "i32")))
    return word


# -- tiles in registers


def _sides(s: Unit) -> tuple[int, int]:
    """Rows and columns of the tile that a unit fills, stores, or adds to."""
    assert s.intrinsic is not None
    rows, columns = s.intrinsic.intrinsic.tensors[-1].shape
    return rows, columns


def _fill(x: LaunchThread, s: Unit) -> None:
    """A product starts with 0."""
    (out,) = s.operands
    type = memory_type(out.buffer.dtype)
    for p in held_elements(x, out, _sides(s)):
        x.line(f"store {type} zeroinitializer, {p.typed}, align {WORD}")


def _store(x: LaunchThread, s: Unit) -> None:
    held, out = s.operands
    sides, size = _sides(s), out.buffer.dtype.itemsize
    across, along = out.strides
    row, number = place_in_tile(x, s.threads)
    _meet(x, s)
    start = moved_by(x, start_of(x, out), scaled(x, row, across * size))
    start = moved_by(x, start, scaled(x, number, 2 * along * size))
    type = memory_type(out.buffer.dtype)
    own = zip(held_elements(x, held, sides), elements(sides[1]), strict=True)
    for p, (j, r, c) in own:
        offset = (ROWS // 2 * r * across + (COLUMNS * j + c) * along) * size
        place = pointer_at(x, out, moved_by(x, start, integer(offset)))
        x.line(f"store {load_word(x, type, p).typed}, {place.typed}, align {size}")
    _meet(x, s)


def _meet(x: LaunchThread, s: Unit) -> None:
    """The threads of a unit synchronize: a warp, or several by a barrier of their own."""
    if s.threads == WARP:
        x.line("call void @llvm.nvvm.bar.warp.sync(i32 -1)")
        return
    barrier = x.number_around(s.threads)
    barrier = x.binary("add", barrier, integer(_FIRST_BARRIER, "i32"))
    name = "llvm.nvvm.barrier.cta.sync.aligned.count"
    x.line(f"call void @{name}({barrier.typed}, i32 {s.threads})")


def _products_of_eight_bits() -> Iterator[tuple[str, _Product]]:
    names = {float8_e4m3fn: "e4m3", float8_e5m2: "e5m2"}
    for a, b in product(names, repeat=2):
        types = f"{names[a]}.{names[b]}"
        call = f"mma.{a}" if a is b else f"mma.{a}.{b}"
        yield call, _Product(f"m16n8k32.row.col.f32.{types}.f32")


CALLS: Final[Mapping[str, Callable[[LaunchThread, Unit], None]]] = {
    "mma.float16": _Product("m16n8k16.row.col.f32.f32", ("half", 2)),
    "mma.bfloat16": _Product("m16n8k16.row.col.bf16"),
    "mma.tf32": _Product("m16n8k8.row.col.tf32", rounded=True),
    "mma.int8": _Product("m16n8k32.row.col.s8"),
    "mma.uint8": _Product("m16n8k32.row.col.u8.s8"),
    "mma.int8.uint8": _Product("m16n8k32.row.col.s8.u8"),
    **dict(_products_of_eight_bits()),
    "mma.fill": _fill,
    "mma.store": _store,
}
