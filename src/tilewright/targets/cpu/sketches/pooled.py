"""A convolution and the pooling of its results in blocks of rows, which the second cache keeps."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dataclass import dataclass
from tilewright.compute.contraction import is_contraction
from tilewright.compute.nodes import Computation
from tilewright.expr.affine import affine
from tilewright.expr.nodes import Load
from tilewright.schedule.space.patterns import free_dims, reduction_dims
from tilewright.targets.cpu.sketches.context import Context


@dataclass(frozen=True, slots=True)
class PooledProducer:
    """What makes the results, and what pools them. again: the work of the first in blocks, of that
    at once. saved: cycles of writing and reading what no longer leaves the cache."""

    producer: Sequence[Computation]
    pooling: Sequence[Computation]
    again: float
    saved: float


def pooled(computations: Sequence[Computation], at: Context) -> PooledProducer | None:
    """The parts of a group that is expected to run faster in blocks of rows; None for any other.

    Its results exceed the second cache, and the results of a block fill at most a quarter of it; a
    row of the pooling needs its own rows and at most a few of the next one's, and no padding; there
    are enough blocks for all cores.
    """
    *producer, pool = computations
    if not 1 <= len(producer) <= 2 or not is_contraction(producer[0]):
        return None
    if not all(c.is_map for c in producer[1:]) or pool.is_map or is_contraction(pool):
        return None
    made = producer[-1].outputs[0].tensor
    (out,) = pool.outputs if len(pool.outputs) == 1 else (None,)
    if out is None or not isinstance(out.value, Load) or out.value.buffer is not made:
        return None
    found = _rows(pool, out.value)
    size = made.size * made.dtype.itemsize
    costs, machine = at.costs, at.machine
    if found is None or size <= machine.l2:
        return None
    rows, step, reach, pitch = found
    most = machine.l2 // costs.quarter // (pitch * made.dtype.itemsize)
    block = min(rows // (costs.blocks * machine.cores), (most - reach) // step + 1)
    if block < 1:
        return None
    again = ((block - 1) * step + reach) / (block * step)
    if again > costs.recomputed:
        return None
    saved = 2 * size * costs.far_byte
    return PooledProducer(producer, (pool,), max(1.0, again), saved)


def _rows(pool: Computation, read: Load) -> tuple[int, int, int, int] | None:
    """For rows of the outermost dimension, in the input read along it: the step from one row to the
    next, the number of input rows that a row needs, and the elements between input rows."""
    free = free_dims(pool)
    if not free:
        return None
    row, *others = free
    along = [n for n, i in enumerate(read.index) if affine(i).coefficient(row.var)]
    if len(along) != 1:
        return None
    (axis,) = along
    if any(n != 1 for n in read.buffer.shape[:axis]):
        return None
    form = affine(read.index[axis])
    if any(form.coefficient(d.var) for d in others):
        return None
    windows = reduction_dims(pool)
    reach = 1 + sum(abs(form.coefficient(d.var)) * (d.extent - 1) for d in windows)
    step = form.coefficient(row.var)
    return (row.extent, step, reach, read.buffer.strides[axis]) if step > 0 else None
