"""The elements of tiles that threads hold together, and addresses of tiles in memory.

Thread t = 4*g + q of a warp has, of a tile in rows of 8, elements

    row g + 8*r, column 2*q + 8*j + c        r < 2, c < 2, j < columns / 8

Warp w of several in a row has the rows from 16*w on.
"""

from __future__ import annotations

from itertools import product
from typing import Final

from tilewright.base.errors import CompileError
from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.nodes import Expr
from tilewright.loops.launch import AXIS
from tilewright.loops.nodes import Operand
from tilewright.loops.operands import position
from tilewright.targets.cuda.intrinsics import COLUMNS, QUADS, ROWS
from tilewright.targets.cuda.machine import WARP
from tilewright.targets.llvm.emit_launch import LaunchThread
from tilewright.targets.llvm.emit_swizzle import offset_in, swizzled_pointer
from tilewright.targets.llvm.emit_text import LlvmValue, integer

WORD: Final = 4  # bytes
_GROUP: Final = (
    8  # rows of which a thread has one; columns of which it has two neighbors
)


def place_in_tile(x: LaunchThread, threads: int) -> tuple[LlvmValue, LlvmValue]:
    """The row of a thread's first element, and its number among the threads that share the row.

    threads: that hold the tile together."""
    lane = x.value(AXIS["threadIdx.x"])
    if _has_quads(x):
        row, number = x.value(AXIS["threadIdx.y"]), lane
        warp = scaled(x, x.value(AXIS["threadIdx.z"]), ROWS)
    else:
        number = x.binary("and", lane, integer(3))
        row = x.binary("and", x.binary("lshr", lane, integer(2)), integer(_GROUP - 1))
        warp = scaled(x, x.binary("lshr", lane, integer(5)), ROWS)
    return (x.binary("or", warp, row) if threads > WARP else row), number


def _has_quads(x: LaunchThread) -> bool:
    """Whether the threads of a warp are on two axes, four on the first."""
    return x.launch.threads[:2] == QUADS


def number_in_warp(x: LaunchThread) -> LlvmValue:
    """The number of the thread in its warp."""
    lane = x.value(AXIS["threadIdx.x"])
    if not _has_quads(x):
        return lane
    quad = x.binary("shl", x.value(AXIS["threadIdx.y"]), integer(2))
    return x.binary("or", quad, lane)


def start_of(x: LaunchThread, o: Operand) -> LlvmValue:
    """The address of an operand; in a swizzled buffer its offset, until all of it is known."""
    if not o.buffer.swizzle:
        return x.access(o.buffer, o.index).pointer
    form = position(o.buffer, o.index)
    size = o.buffer.dtype.itemsize
    return offset_in(x, o.buffer, form.terms, form.const * size)


def moved_by(x: LaunchThread, p: LlvmValue, nbytes: LlvmValue) -> LlvmValue:
    if p.type != "ptr":
        return x.binary("add", p, x.convert("trunc", nbytes, "i32"))
    return x.ins(f"getelementptr i8, {p.typed}, {nbytes.typed}", "ptr")


def pointer_at(x: LaunchThread, o: Operand, p: LlvmValue) -> LlvmValue:
    """The pointer to what `start_of` and `moved_by` lead to."""
    return p if p.type == "ptr" else swizzled_pointer(x, o.buffer, p)


def scaled(x: LaunchThread, v: LlvmValue, by: int) -> LlvmValue:
    return x.binary("mul", v, integer(by))


def load_word(x: LaunchThread, type: str, p: LlvmValue) -> LlvmValue:
    return x.ins(f"load {type}, {p.typed}, align {WORD}", type)


def held_elements(
    x: LaunchThread,
    o: Operand,
    sides: tuple[int, int] = (ROWS, COLUMNS),
    right: int = 0,
) -> list[LlvmValue]:
    """The addresses of a thread's elements of a tile, so many columns further right. Raises
    CompileError for a part of a tile."""
    b, (rows, columns) = o.buffer, sides
    forms = [affine(i) for i in o.index]
    parts = [
        (e, *(c for _, c in f.terms), f.const)
        for e, f in zip(b.shape, forms, strict=True)
    ]
    units = (*[1] * (len(b.shape) - 2), *sides)
    whole = all(n % unit == 0 for unit, ns in zip(units, parts) for n in ns)
    if not whole or o.strides != b.strides[-2:]:
        raise CompileError(
            f"{b.name} does not consist of whole {rows} x {columns} tiles, "
            "or the unit does not start at one",
            code="TW-INTRINSIC",
            where=f"launch {x.launch.name}",
            hint=f"give it extents that are multiples of {rows} and {columns}, and split the "
            "loops around the unit by them",
        )
    *around, row, column = forms
    column = column + Affine((), right)
    part, found = x.parts[b], []
    for j, r, c in elements(columns):
        at = (_divided(row, rows // 2, r), _divided(column, _GROUP // 2, 2 * j + c))
        found.append(x.access(part, (*map(to_expr, around), *at)).pointer)
    return found


def elements(columns: int) -> list[tuple[int, int, int]]:
    """(j, r, c) of a thread's elements of a tile, in the order of its registers."""
    return list(product(range(columns // _GROUP), range(2), range(2)))


def _divided(form: Affine, by: int, offset: int) -> Expr:
    terms = tuple((atom, c // by) for atom, c in form.terms)
    return to_expr(Affine(terms, form.const // by + offset))
