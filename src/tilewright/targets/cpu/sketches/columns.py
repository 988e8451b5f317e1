"""Reductions down columns: rows go by in the order of memory, and each core takes some of them.

A register tile of columns (`tiled`) would read a piece of each row and leave the rest for later,
which is slow for data beyond the second cache: prefetchers follow whole rows. And a core that takes
some of the columns fetches most of them from the cores that made the rows; the lines that it read
are then slow to write for those cores, in whatever tensor comes next. Here all columns are
accumulated in memory, which stays in the first cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from tilewright.base.dataclass import dataclass
from tilewright.compute.nodes import Computation, Dim
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.nest import (
    VECTORS,
    divisors,
    existing,
    extents,
    place,
    vectorize_inner,
)
from tilewright.schedule.space.patterns import (
    KernelPattern,
    address,
    free_dims,
    reduction_dims,
    stride,
)
from tilewright.targets.cpu.cost import CostModel
from tilewright.targets.cpu.sketches.context import Context
from tilewright.targets.cpu.sketches.partial_sums import in_parts, nests


@dataclass(frozen=True, slots=True)
class DimensionOrder:
    """Dimensions in the order of memory, outermost first.

    batch: of results apart. rows: from the outermost dimension of the reduction inwards.
    """

    batch: tuple[Dim, ...]
    rows: tuple[Dim, ...]


def by_rows(pattern: KernelPattern, at: Context) -> bool:
    """Whether rows go by in the order of memory: of data beyond the second cache, and of smaller
    data that several cores hold, if they share the work and half of them have rows enough."""
    order = memory_order(pattern, at.costs)
    if order is None:
        return False
    r = pattern.reduction
    assert r is not None
    read = r.accesses[0].buffer
    if read.size * read.dtype.itemsize > at.machine.l2:
        return True
    if at.around or read in at.constants or order.batch:
        return False
    points = math.prod(d.extent for d in r.dims)
    taken = points * at.costs.point_ns + at.costs.moving([read], at.constants)
    parts = _possible_parts(order, at)[-1]
    enough = parts > 1 and 2 * parts >= at.machine.cores
    return enough and at.costs.worth_sharing(taken)


def _possible_parts(order: DimensionOrder, at: Context) -> list[int]:
    """How many parts the rows may have, of which each is worth one."""
    if at.exact or order.batch:
        most = 1
    else:
        most = order.rows[0].extent // at.costs.many_rows
    return [n for n in divisors(at.machine.cores) if n <= max(1, most)]


def memory_order(pattern: KernelPattern, costs: CostModel) -> DimensionOrder | None:
    """The order of a tiled reduction of data that is read once, whole and without gaps.

    None for any other, and where the results of one row do not fit the first cache.
    """
    r = pattern.reduction
    if r is None or len(r.accesses) != 1:
        return None
    load = r.accesses[0]
    itemsize = load.dtype.itemsize
    inner = reduction_dims(r)
    if math.prod(d.extent for d in inner) < costs.long_sum:
        return None
    steps = {d: stride(address(load), d.var) or 0 for d in (*free_dims(r), *inner)}
    dims = sorted(steps, key=lambda d: -steps[d])
    below = [math.prod(d.extent for d in dims[n + 1 :]) for n in range(len(dims))]
    if [steps[d] for d in dims] != below:
        return None
    if dims[-1] is not pattern.vector:
        return None
    first = min(map(dims.index, inner))
    sums = math.prod(d.extent for d in dims[first:] if d not in inner)
    if sums * itemsize > costs.machine.l1 // costs.half:
        return None
    return DimensionOrder(tuple(dims[:first]), tuple(dims[first:]))


def columns(
    s: Schedule, pattern: KernelPattern, at: Context, choose: Choices
) -> Schedule:
    """See the module's docstring.

    parameters: `<reduction>.vectors`, in flight at a time; `<reduction>.parts`, results of some of
    the rows each, which are made at once and then combined; `<reduction>.shared`.
    """
    r = pattern.reduction
    order = memory_order(pattern, at.costs)
    assert r is not None and r.reducer is not None and order is not None
    lanes = at.machine.lanes(r.reducer.dtypes[0])
    batch, rows = (
        [f"{r.name}.{d.var.name}" for d in x] for x in (order.batch, order.rows)
    )
    _start(s, r.outputs[0].tensor.name, [*batch, *rows], lanes)
    at.share(s, batch, choose, r.name)
    count = extents(s.kernel)[rows[0]]
    possible = _possible_parts(order, at)
    parts = choose(f"{r.name}.parts", possible, possible[-1])
    if parts > 1:
        _parts(s, rows[0], count // parts, lanes)
    if not at.exact:
        _in_parts(s, r, order.rows, lanes, at.costs)
    vectors = choose(f"{r.name}.vectors", VECTORS, at.costs.in_flight)
    for loop in [n for n in s.loops if n in (rows[-1], f"{rows[-1]}.t")]:
        _vectors(s, loop, lanes, vectors)
    if pattern.epilogue is not None:
        e = pattern.epilogue
        loops = existing(s, [f"{e.name}.{d.var.name}" for d in free_dims(e)])
        vectorize_inner(s, loops[-1], lanes)
    return s


def _start(s: Schedule, target: str, order: Sequence[str], lanes: int) -> None:
    """The results initialized in their own nest, and the reduction in the order given."""
    nest = [n for n in s.loops if n in order]
    starts = dict(zip(nest, s.decompose_reduction(target, nest[0]), strict=False))
    wanted = [n for n in order if n in starts]
    if list(starts) != wanted:
        s.reorder(*(starts[n] for n in wanted))
    vectorize_inner(s, starts[wanted[-1]], lanes)
    if nest != [*order]:
        s.reorder(*order)


def _in_parts(
    s: Schedule, r: Computation, rows: Sequence[Dim], lanes: int, costs: CostModel
) -> None:
    """Long sums in parts (see `partial_sums`): cut along the dimensions one inside another, without
    results between, that have the most terms. rows: outermost first."""
    summed = reduction_dims(r)
    runs = [list(d) for add, d in groupby(rows, lambda d: d in summed) if add]
    run = max(runs, key=_terms)
    within = [d for d in rows[rows.index(run[-1]) + 1 :] if d in summed]
    names = {d: f"{r.name}.{d.var.name}" for d in run}
    loops = [f"{names[d]}.i" if f"{names[d]}.i" in s.loops else names[d] for d in run]
    _, part = in_parts(s, r, loops, _terms(within))
    if part is None:
        return
    place(s, part, costs.stack)
    for nest in nests(s, part):
        _vectors(s, nest[-1], lanes, 1)


def _terms(dims: Sequence[Dim]) -> int:
    return math.prod(d.extent for d in dims)


def _parts(s: Schedule, loop: str, rows: int, lanes: int) -> None:
    """Partial results of this many rows each, on separate threads, then combined."""
    part, *_ = s.split(
        loop, rows, "exact" if extents(s.kernel)[loop] % rows == 0 else "cut"
    )
    (new,) = s.rfactor(part, "global")
    s.parallel(part)
    for nest in ("c", "m"):
        loops = existing(s, [n for n in s.loops if n.startswith(f"{new}.{nest}")])
        _vectors(s, loops[-1], lanes, 1)


def _vectors(s: Schedule, loop: str, lanes: int, count: int) -> None:
    """A vectorized accumulating loop: `count` vectors at a time, then one, then the remainder."""
    extent = extents(s.kernel)[loop]
    if extent <= lanes:
        s.vectorize(loop)
        return
    width = lanes * max(1, min(count, extent // lanes))
    tail = "exact" if extent % width == 0 else "cut"
    _, inner, *rest = s.split(loop, width, tail)  # type: ignore[arg-type]
    if width > lanes:
        block, inner = s.split(inner, lanes)
        s.unroll(block)
    s.vectorize(inner)
    for left in rest:
        _vectors(s, left, lanes, 1)
