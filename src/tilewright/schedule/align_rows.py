"""Rows of intermediate buffers begin at lines of the cache.

A vector that crosses two lines is loaded or stored in two steps. Where rows of a buffer are not a
whole number of lines, all vectors of most rows do, those at the start of a tile, too; with a few
elements more in each row, none of these does. The outer dimensions stay.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import Buffer
from tilewright.loops.nodes import Alloc, Kernel, Unit
from tilewright.loops.walk import walk
from tilewright.schedule import edit
from tilewright.schedule.tensorized_block import settled

# Bytes of a line of the cache, and of a page: rows a whole number of pages apart share the sets of
# the cache, which then hold few of them.
LINE, PAGE = 64, 4096
# Rows of fewer lines stay unchanged: they would grow by more than an eighth.
LINES = 8


def align_rows(kernel: Kernel) -> Kernel:
    """The kernel with more room at the end of rows; it computes the same.

    Only buffers that it allocates, of two dimensions or more and of constant size. Those of Units
    stay where an intrinsic takes only rows without gaps.
    """
    copies = {
        p.stmt.buffer: new
        for p in walk(kernel.body)
        if isinstance(p.stmt, Alloc) and (new := _aligned(p.stmt.buffer)) is not None
    }
    if not copies:
        return kernel
    try:
        return _with(kernel, copies)
    except ScheduleError:
        held = _operands(kernel)
        return _with(kernel, {b: copies[b] for b in copies if b not in held})


def _with(kernel: Kernel, copies: Mapping[Buffer, Buffer]) -> Kernel:
    """The kernel with other buffers; raises ScheduleError for a Unit that cannot have them."""
    moves = {old: edit.onto(new) for old, new in copies.items()}
    body = edit.rewrite(kernel.body, {}, moves=moves)
    after = kernel.with_body(edit.with_allocs(body, copies))
    return settled(kernel, after, "align_rows")


def _operands(kernel: Kernel) -> set[Buffer]:
    units = (p.stmt for p in walk(kernel.body) if isinstance(p.stmt, Unit))
    return {o.buffer for unit in units for o in unit.operands}


def _aligned(b: Buffer) -> Buffer | None:
    """The buffer with longer rows; None where they stay."""
    if len(b.extents) < 2 or b.scope == "register":
        return None
    *outer, row = b.extents
    size = b.dtype.itemsize
    if not isinstance(row, int):
        return None
    if LINE % size or row * size % LINE == 0 or row * size < LINES * LINE:
        return None
    length = -(-row * size // LINE) * LINE
    if length % PAGE == 0:
        length += LINE
    return Buffer(b.name, (*outer, length // size), b.dtype, b.scope)
