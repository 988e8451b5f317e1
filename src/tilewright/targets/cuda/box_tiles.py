"""Tiles of a product's factors that one thread copies as boxes."""

from __future__ import annotations

from collections.abc import Collection

from tilewright.base.errors import ScheduleError
from tilewright.expr.affine import affine
from tilewright.expr.nodes import Load, Select
from tilewright.expr.swizzle import BLOCK
from tilewright.ir.node import postorder
from tilewright.loops.analysis.effects import writes
from tilewright.loops.nodes import BULK, For
from tilewright.loops.passes.bulk_copies import RANK, SIDE, STEP, bulk_refusal
from tilewright.loops.walk import loops_of
from tilewright.schedule import Schedule
from tilewright.schedule.space.nest import existing
from tilewright.schedule.tree import find_buffer
from tilewright.targets.cuda.machine import WARP, CudaMachine
from tilewright.targets.cuda.tensor_tiling import TensorTiling


def copies_boxes(t: TensorTiling, machine: CudaMachine) -> bool:
    """Whether both factors' tiles can be copied as boxes: they are read as they are, along a
    dimension each, from tensors whose rows are multiples of 16 bytes.

    Of two steps, the last one has to be whole: in a loop of one iteration it is not seen that its
    condition says where the tensor ends.
    """
    p = t.plan.product
    if t.unit.threads == WARP or not machine.simt.bulk_copies:
        return False
    value = p.reduction.outputs[0].value
    if any(isinstance(e, Select) for e in postorder(value)):
        return False
    if t.plan.steps <= 2 and t.along.extent % t.tile.depth:
        return False
    return all(_is_box(t, read) for read in (p.left, p.right))


def _is_box(t: TensorTiling, read: Load) -> bool:
    x, sizes = read.buffer, t.plan.sizes
    tiled = {d.var: n for d, n in sizes.items() if n > 1}
    for index in read.index:
        along = [(c, tiled[a]) for a, c in affine(index).terms if a in tiled]
        if len(along) > 1 or any(c != 1 or n > SIDE for c, n in along):
            return False
    if not x.static or len(x.shape) > RANK:
        return False
    return all(step * x.dtype.itemsize % STEP == 0 for step in x.strides[:-1])


def fetch_box(s: Schedule, read: Load, loop: str) -> str:
    """Fetch the part of a factor that each iteration of a loop reads; its buffer.

    Longer rows are in blocks of 128 bytes, a box each.
    """
    name = s.cache_read(read.buffer.name, loop, "shared", pad=True)
    copied, _ = find_buffer(s.kernel, name, "cache_read")
    rank, n = len(copied.shape), BLOCK // copied.dtype.itemsize
    if copied.shape[-1] > n:
        *around, last = existing(s, [f"{name}.r{axis}" for axis in range(rank)])
        block, last = s.split(last, n)
        s.reorder(block, *around, last)
    return name


def note_boxes(s: Schedule, fetched: Collection[str]) -> None:
    """Note at the loops that fetch tiles that these are boxes. Raises ScheduleError for one that is
    none."""
    inside: set[For] = set()
    for f in list(loops_of(s.kernel.body)):
        names = {b.name for b in writes(f)}
        if f in inside or not names or not names <= set(fetched) or f.kind != "serial":
            continue
        why = bulk_refusal(f)
        if not why:
            inside.update(loops_of(f))
            s.annotate(f.var.name, BULK, 1)
        elif not isinstance(f.body, For):
            raise ScheduleError(f"no copy of a box: {why}", where=f"loop {f.var.name}")
