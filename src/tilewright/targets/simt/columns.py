"""Reductions along columns: neighboring threads have neighboring columns, and several share a
column.

    for j in n: for k in m: y[j] add= x[k, j]
    ->  blockIdx.x, threadIdx.x: j: threadIdx.y: parts of the sum; a tree

Like the schedule by element, with several threads per element if there are too few elements. As a
choice, where any order will do (`atomic_works`), several blocks share a column: each adds its part
to the result as one step of the device's memory.

    y[j] = 0 for all j; blockIdx.y, blockIdx.x, threadIdx.x: j: threadIdx.y: parts; a tree; atomic
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from tilewright.base.errors import ScheduleError
from tilewright.base.numbers import ceil_div
from tilewright.compute.contraction import is_contraction
from tilewright.compute.nodes import Computation
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.inlining import inlined
from tilewright.schedule.space.nest import existing, extents
from tilewright.schedule.space.patterns import classify, free_dims, reduction_dims
from tilewright.schedule.tree import find_loop
from tilewright.targets.simt.binding import bind_elements, over_threads
from tilewright.targets.simt.column_cost import Columns, column_ns, columns_of
from tilewright.targets.simt.cost import GAIN
from tilewright.targets.simt.machine import SimtMachine
from tilewright.targets.simt.row_cost import LANES, TREE_BYTES, part_counts
from tilewright.targets.simt.rows import suits
from tilewright.targets.simt.totals import atomic_works

COLUMNS: Final = 32  # neighbors that read whole lines of memory together
FEW: Final = 4  # rounds of all threads: with fewer elements, threads share one
THREADS: Final = 256  # of a block
SHORT: Final = 64  # steps of a reduction that are not worth a tree


def are_columns(computations: Sequence[Computation], machine: SimtMachine) -> bool:
    """Whether a group is one reduction, contiguous along its free dimensions, with few results of
    many elements each."""
    if len(computations) > 2 or not all(map(suits, computations)):
        return False
    pattern = classify(computations)
    first = computations[0]
    if pattern.name not in ("tiled", "joint") or is_contraction(first):
        return False
    results = math.prod(d.extent for d in free_dims(first))
    steps = math.prod(d.extent for d in reduction_dims(first))
    return steps >= SHORT and results * FEW <= machine.units * machine.unit_threads


def by_columns(
    s: Schedule,
    computations: Sequence[Computation],
    machine: SimtMachine,
    choose: Choices,
) -> Schedule:
    """See the module's docstring. requires: `are_columns`.

    parameters: those of `inlined`; `columns` and `parts`, threads of a block across columns and per
    column; `<reduction>.blocks`, that share a column. Raises ScheduleError if a map after it cannot
    be computed in its threads.
    """
    rest = list(computations)
    if len(rest) > 1:
        s, rest = inlined(s, rest, choose)
    s = s.fork()
    most = min(machine.block_threads, machine.shared // TREE_BYTES)
    first = rest[0]
    of = columns_of(first, rest[-1])
    possible = [n for n in LANES if n <= most]
    columns = choose("columns", possible, _usual(of, machine, possible).columns)
    possible = [n for n in LANES if n * columns <= most]
    parts = choose("parts", possible, _usual(of, machine, [columns]).parts)
    along = existing(s, [f"{first.name}.{d.var.name}" for d in reduction_dims(first)])
    loops = existing(s, [f"{rest[-1].name}.{d.var.name}" for d in free_dims(rest[-1])])
    if len(rest) == 1 and atomic_works(first, machine):
        _, counts = part_counts(machine, extents(s.kernel)[along[0]], parts)
        blocks = choose(f"{first.name}.blocks", counts, 1)
        if blocks > 1:
            along[0] = _shared_by_blocks(s, first, loops, along, blocks)
    nest, _ = find_loop(s.kernel, loops[0], "bind")
    inner = bind_elements(s, nest, columns)
    for c in rest[:-1]:
        if not inner or c.outputs[0].tensor in s.kernel.params:
            raise ScheduleError(f"{c.name} is a separate launch")
        s.compute_at(c.outputs[0].tensor.name, inner)
        s.set_scope(c.outputs[0].tensor.name, "register")
    over_threads(s, along, parts, 1, "threadIdx.y")
    return s


class _ColumnShape(NamedTuple):
    """Threads of a block across columns, and for each."""

    columns: int
    parts: int


def _usual(of: Columns, machine: SimtMachine, columns: Sequence[int]) -> _ColumnShape:
    """A block of THREADS threads, COLUMNS across, unless another one is expected to be faster.

    columns: how many it may have.
    """
    most = min(machine.block_threads, machine.shared // TREE_BYTES)
    few = [n for n in columns if n <= COLUMNS] or columns
    counts = {c: [p for p in LANES if p * c <= min(most, max(c, THREADS))] for c in few}
    usual = _ColumnShape(max(few), max(counts[max(few)]))
    others = (_ColumnShape(c, p) for c in few for p in counts[c])

    def time(x: _ColumnShape) -> float:
        return column_ns(of, x.columns, x.parts, machine)

    best = min(others, key=lambda x: (time(x), [-n for n in x]))
    gains = time(best) * GAIN < time(usual)
    return best if gains else usual


def _shared_by_blocks(
    s: Schedule, c: Computation, loops: Sequence[str], along: Sequence[str], blocks: int
) -> str:
    """Give parts of a reduction's outermost loop to blocks, which add them; the loop in a part.

    loops, along: over the results, and over what is summed.
    """
    first, *_ = s.decompose_reduction(c.outputs[0].tensor.name, loops[0])
    nest, _ = find_loop(s.kernel, first, "bind")
    bind_elements(s, nest, THREADS)
    count = extents(s.kernel)[along[0]]
    part, mine = s.split(along[0], ceil_div(count, blocks), "guard")
    s.reorder(part, *loops, mine, *along[1:])
    s.atomic(part, "blockIdx.y")
    return mine
