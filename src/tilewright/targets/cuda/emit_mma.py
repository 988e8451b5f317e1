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

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import CompileError
from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.nodes import Expr
from tilewright.loops.launch import AXIS
from tilewright.loops.nodes import Operand, Unit
from tilewright.loops.operands import position
from tilewright.targets.cuda.intrinsics import (
    COLUMNS,
    MATRIX_ROW,
    QUADS,
    ROWS,
    MatrixLoads,
    matrix_loads,
)
from tilewright.targets.llvm.emit_launch import LaunchThread
from tilewright.targets.llvm.emit_swizzle import offset_in, swizzled_pointer
from tilewright.targets.llvm.emit_text import LlvmValue, integer
from tilewright.targets.llvm.emit_types import memory_type

_MEET: Final = "call void @llvm.nvvm.bar.warp.sync(i32 -1)"
_PART: Final = 4  # elements of a tile that each thread has
_WORD: Final = 4  # bytes


def _lane(x: LaunchThread) -> tuple[LlvmValue, LlvmValue]:
    """The number of four threads in the warp, and of the thread among these."""
    lane = x.value(AXIS["threadIdx.x"])
    if _has_quads(x):
        return x.value(AXIS["threadIdx.y"]), lane
    return x.binary("lshr", lane, integer(2)), x.binary("and", lane, integer(3))


def _has_quads(x: LaunchThread) -> bool:
    """Whether the threads of a warp are on two axes, four on the first."""
    return x.launch.threads[:2] == QUADS


def _number(x: LaunchThread) -> LlvmValue:
    """The number of the thread in its warp."""
    lane = x.value(AXIS["threadIdx.x"])
    if not _has_quads(x):
        return lane
    quad = x.binary("shl", x.value(AXIS["threadIdx.y"]), integer(2))
    return x.binary("or", quad, lane)


def _start(x: LaunchThread, o: Operand) -> LlvmValue:
    """The address of an operand; in a swizzled buffer its offset, until all of it is known."""
    if not o.buffer.swizzle:
        return x.access(o.buffer, o.index).pointer
    form = position(o.buffer, o.index)
    size = o.buffer.dtype.itemsize
    return offset_in(x, o.buffer, form.terms, form.const * size)


def _moved(x: LaunchThread, p: LlvmValue, nbytes: LlvmValue) -> LlvmValue:
    if p.type != "ptr":
        return x.binary("add", p, x.convert("trunc", nbytes, "i32"))
    return x.ins(f"getelementptr i8, {p.typed}, {nbytes.typed}", "ptr")


def _at(x: LaunchThread, o: Operand, p: LlvmValue) -> LlvmValue:
    """The pointer to what `_start` and `_moved` lead to."""
    return p if p.type == "ptr" else swizzled_pointer(x, o.buffer, p)


def _scaled(x: LaunchThread, v: LlvmValue, by: int) -> LlvmValue:
    return x.binary("mul", v, integer(by))


@dataclass(frozen=True, slots=True)
class _Product:
    """name: LLVM's of the instruction. register: its type of a factor's. rounded: to tf32."""

    name: str
    register: tuple[str, int] = ("i32", 1)
    rounded: bool = False

    def __call__(self, x: LaunchThread, s: Unit) -> None:
        a, b, out = s.operands
        per = _WORD // a.buffer.dtype.itemsize
        part = _held(x, out)
        halves = [(ROWS // 2 * (r % 2), 4 * per * (r // 2)) for r in range(4)]
        if a.buffer.scope == "warp":
            words = _own_words(x, a)
        else:
            words = _words(x, a, (0, 1), halves)
        words += _words(x, b, (1, 0), [(0, 4 * per * r) for r in range(2)])
        type = memory_type(out.buffer.dtype)
        factors = [self._factor(x, word).typed for word in words]
        sums = [_load(x, type, p).typed for p in part]
        made = f"{{ {', '.join([type] * _PART)} }}"
        given = ", ".join([*factors, *sums])
        # Tell LLVM that all threads of the warp have to reach it.
        call = f"call {made} @llvm.nvvm.mma.{self.name}({given}) convergent"
        found = x.ins(call, made)
        for n, p in enumerate(part):
            value = x.ins(f"extractvalue {found.typed}, {n}", type)
            x.line(f"store {value.typed}, {p.typed}, align {_WORD}")

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
    tiles = (_held(x, o, COLUMNS * n) for n in range(2))
    pairs = [(pointers[0], pointers[2]) for pointers in tiles]
    return [_load(x, "i32", p) for pair in pairs for p in pair]


def _words(
    x: LaunchThread,
    o: Operand,
    axes: tuple[int, int],
    places: Sequence[tuple[int, int]],
) -> list[LlvmValue]:
    """A thread's registers of a factor. axes: along which it has one element in each, and a run of
    them; places: of the first element of each on these, for the first thread."""
    size = o.buffer.dtype.itemsize
    per = _WORD // size
    across, along = (o.strides[axis] for axis in axes)
    by_matrix = matrix_loads(size, (across, along))
    is_shared = o.buffer.scope == "shared"
    if by_matrix is not None and is_shared and _is_multiple(o, MATRIX_ROW // size):
        return _loaded_matrices(x, o, by_matrix, (across, along), places)
    group, number = _lane(x)
    start = _moved(x, _start(x, o), _scaled(x, group, across * size))
    start = _moved(x, start, _scaled(x, number, along * _WORD))
    is_word = along == 1 and across % per == 0 and _is_multiple(o, per)
    found = []
    for i, k in places:
        first = _moved(x, start, integer((i * across + k * along) * size))
        found.append(
            _load(x, "i32", _at(x, o, first))
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
    lane = _number(x)
    row = x.binary("and", lane, integer(7))
    start = _moved(x, _start(x, o), _scaled(x, row, how.pitch * size))
    count, bit = len(places), 1
    while bit < count:
        i, k = places[bit]
        offset = (i * strides[0] + k * strides[1]) * size
        number = x.binary("lshr", lane, integer(2 + bit.bit_length()))
        number = x.binary("and", number, integer(1))
        start = _moved(x, start, _scaled(x, number, offset))
        bit *= 2
    shared = "ptr addrspace(3)"
    start = _at(x, o, start)
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
    for n in range(_WORD // o.buffer.dtype.itemsize):
        p = _at(x, o, _moved(x, first, integer(n * step)))
        part = x.ins(f"load i{bits}, {p.typed}, align {bits // 8}", f"i{bits}")
        part = x.convert("zext", part, "i32")
        word = x.binary("or", word, x.binary("shl", part, integer(n * bits, "i32")))
    return word


def _load(x: LaunchThread, type: str, p: LlvmValue) -> LlvmValue:
    return x.ins(f"load {type}, {p.typed}, align {_WORD}", type)


# -- tiles of a warp


def _held(x: LaunchThread, o: Operand, right: int = 0) -> list[LlvmValue]:
    """The addresses of a thread's four elements of a tile, so many columns further right. Raises
    CompileError for a part of a tile."""
    b = o.buffer
    sides = (*[1] * (len(b.shape) - 2), ROWS, COLUMNS)
    forms = [affine(i) for i in o.index]
    parts = [
        (e, *(c for _, c in f.terms), f.const)
        for e, f in zip(b.shape, forms, strict=True)
    ]
    whole = all(n % side == 0 for side, ns in zip(sides, parts) for n in ns)
    if not whole or o.strides != b.strides[-2:]:
        raise CompileError(
            f"{b.name} does not consist of whole {ROWS} x {COLUMNS} tiles, "
            "or the unit does not start at one",
            code="TW-INTRINSIC",
            where=f"launch {x.launch.name}",
            hint=f"give it extents that are multiples of {ROWS} and {COLUMNS}, and split the "
            "loops around the unit by them",
        )
    rows, columns = (ROWS // 2, COLUMNS // 2)
    *around, row, column = forms
    column = column + Affine((), right)
    part, found = x.parts[b], []
    for n in range(_PART):
        at = (_divided(row, rows, n // 2), _divided(column, columns, n % 2))
        index = (*map(to_expr, around), *at)
        found.append(x.access(part, index).pointer)
    return found


def _divided(form: Affine, by: int, offset: int) -> Expr:
    terms = tuple((atom, c // by) for atom, c in form.terms)
    return to_expr(Affine(terms, form.const // by + offset))


def _fill(x: LaunchThread, s: Unit) -> None:
    """A product starts with 0."""
    (out,) = s.operands
    type = memory_type(out.buffer.dtype)
    for p in _held(x, out):
        x.line(f"store {type} zeroinitializer, {p.typed}, align {_WORD}")


def _store(x: LaunchThread, s: Unit) -> None:
    held, out = s.operands
    size = out.buffer.dtype.itemsize
    across, along = out.strides
    group, number = _lane(x)
    x.line(_MEET)
    start = _moved(x, _start(x, out), _scaled(x, group, across * size))
    start = _moved(x, start, _scaled(x, number, 2 * along * size))
    type = memory_type(out.buffer.dtype)
    for n, p in enumerate(_held(x, held)):
        offset = (ROWS // 2 * (n // 2) * across + n % 2 * along) * size
        place = _at(x, out, _moved(x, start, integer(offset)))
        x.line(f"store {_load(x, type, p).typed}, {place.typed}, align {size}")
    x.line(_MEET)


CALLS: Final[Mapping[str, Callable[[LaunchThread, Unit], None]]] = {
    "mma.float16": _Product("m16n8k16.row.col.f32.f32", ("half", 2)),
    "mma.bfloat16": _Product("m16n8k16.row.col.bf16"),
    "mma.tf32": _Product("m16n8k8.row.col.tf32", rounded=True),
    "mma.int8": _Product("m16n8k32.row.col.s8"),
    "mma.uint8": _Product("m16n8k32.row.col.u8.s8"),
    "mma.int8.uint8": _Product("m16n8k32.row.col.s8.u8"),
    "mma.fill": _fill,
    "mma.store": _store,
}
