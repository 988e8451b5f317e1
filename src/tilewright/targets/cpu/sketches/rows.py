"""Reductions along contiguous rows: softmax, layer normalization, row sums.

All Computations of one row run together, intermediate rows in the cache; each reduction keeps
vectors of partial results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.compute.nodes import Computation, Dim
from tilewright.expr.nodes import Buffer, Load
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.nest import (
    AHEAD,
    VECTORS,
    divisors,
    existing,
    extents,
    fetched_ahead,
    last_tile,
    place,
    tile_vectors,
    vectorize_inner,
)
from tilewright.schedule.space.patterns import (
    KernelPattern,
    address,
    arguments,
    free_dims,
    reduction_dims,
    streams_rows,
    stride,
    uses,
)
from tilewright.targets.cpu.cost import CostModel
from tilewright.targets.cpu.sketches.context import Context
from tilewright.targets.cpu.sketches.element_time import element_cycles
from tilewright.targets.cpu.sketches.row_loops import RowLoop, in_results, row_loops

USUAL_ROWS = (1, 2, 4)  # that the rule takes
ROWS = (1, 2, 3, 4, 8)  # that may be interleaved


def streams(pattern: KernelPattern, at: Context) -> bool:
    """Whether a tiled reduction is bound by memory, which it reads along rows of two vectors or
    more: shorter ones have no partial results in vectors."""
    assert pattern.reduction is not None
    dtype = pattern.reduction.outputs[0].value.dtype
    inner = reduction_dims(pattern.reduction)
    if not inner or inner[-1].extent < 2 * at.machine.lanes(dtype):
        return False
    size = at.machine.l2 // dtype.itemsize
    few, terms = at.costs.few_vectors, at.costs.vector_terms
    return streams_rows(pattern, at.constants, few, size, terms)


def are_separate(pattern: KernelPattern, at: Context) -> bool:
    """Whether one kernel can compute row after row: none is used in the results of another, as the
    degrees of a graph's nodes are, by which an entry is divided for its row and its column."""
    computations = pattern.computations
    several = any(free_dims(c) for c in computations if not c.is_map)
    return not several or bool(_row_dims(computations[-1], computations, False))


def rows(s: Schedule, pattern: KernelPattern, at: Context, choose: Choices) -> Schedule:
    """See the module's docstring.

    parameters: those of `in_rows`; `<last>.parallel`. For a total, which has no rows,
    `<reduction>.parts`: partial results that are computed concurrently and then combined.
    """
    computations = pattern.computations
    points = sum(math.prod(d.extent for d in c.dims) for c in computations)
    if len(computations) == 1 and not free_dims(computations[0]):
        return _total(s, computations[0], points, at, choose)
    size = sum(b.size * b.dtype.itemsize for b in s.kernel.params)
    outer = in_rows(s, computations, at, choose, near=size <= at.machine.l2)
    taken = element_cycles(pattern, at) / at.machine.clock
    taken += at.costs.moving(s.kernel.params, at.constants)
    if at.threads(choose, computations[-1].name, at.costs.worth_sharing(taken)):
        at.share(s, outer, choose, computations[-1].name)
    return s


def _total(
    s: Schedule, c: Computation, points: int, at: Context, choose: Choices
) -> Schedule:
    """One result of everything: parts on their own threads, each in vectors."""
    loops = [f"{c.name}.{d.var.name}" for d in reduction_dims(c)]
    lanes = at.machine.lanes(c.outputs[0].tensor.dtype)
    count = reduction_dims(c)[0].extent
    possible = [n for n in divisors(at.machine.cores) if n <= count and not at.around]
    if at.costs.worth_sharing(points * at.costs.passed_ns):
        good = possible[-1]
    else:
        good = 1
    if len(possible) > 1:
        parts = choose(f"{c.name}.parts", possible, good)
    else:
        parts = 1
    if parts > 1:
        tail = "exact" if count % parts == 0 else "cut"
        part, loops[0], *_ = s.split(loops[0], count // parts, tail)  # type: ignore[arg-type]
        s.rfactor(part, "global")
        s.parallel(part)
    _partial_vectors(s, RowLoop(tuple(loops), (c,)), lanes, at.costs, choose)
    return s


def in_rows(
    s: Schedule,
    computations: Sequence[Computation],
    at: Context,
    choose: Choices,
    near: bool,
) -> list[str]:
    """Everything of one row together, in vectors; the loops over rows, outermost first.

    near: whether the rows are in a cache of the core. parameters: `<computation>.vectors`, in
    flight at a time, and `<computation>.prefetch`; `<last>.rows`, interleaved: one row's work fills
    the latency of another's.
    """
    held = {o.tensor for c in computations[:-1] for o in c.outputs}
    alone = held.isdisjoint(s.kernel.params)
    row_dims = _row_dims(computations[-1], computations, alone)
    outer = _around_rows(s, computations, row_dims, at.costs.stack)
    together = _together(s, computations, row_dims, outer, at, near, choose)
    made = row_loops(s, computations, len(row_dims), at.machine, choose)
    whole = not outer or extents(s.kernel)[outer[-1]] % together == 0
    overwritten = in_results(s, computations, at.costs, choose) if whole else set()
    fetch = _fetches(computations, len(row_dims), at.costs)
    for p in made:
        vector = _vectors(s, p, overwritten, at, choose)
        bytes_ahead = next((fetch[c] for c in p.computations if c in fetch), None)
        fetched_ahead(s, vector, choose, p.computations[0].name, bytes_ahead or 0)
    if together == 1:
        return outer
    block, inner = s.split(outer[-1], together, "overlap")
    s.vthread(inner)
    return [*outer[:-1], block]


def _around_rows(
    s: Schedule, computations: Sequence[Computation], rows: Sequence[Dim], stack: int
) -> list[str]:
    """Everything inside the last one's loops over rows, which others that stay in memory join;
    the names of these loops."""
    outer: list[str] = []
    for c in reversed(computations):
        dims = rows if c is computations[-1] else free_dims(c)[: len(rows)]
        loops = existing(s, [f"{c.name}.{d.var.name}" for d in dims])
        if c is computations[-1]:
            outer = loops
            if len(outer) > 1 and not c.is_map:
                s.reorder(*outer)
        elif not outer:
            return outer
        elif any(o.tensor in s.kernel.params for o in c.outputs):
            for one, other in zip(loops, outer, strict=False):
                s.merge(one, other)
            outer = loops[: len(outer)]
        else:
            for o in c.outputs:
                s.compute_at(o.tensor.name, outer[-1])
                place(s, o.tensor.name, stack)
    return outer


def _together(
    s: Schedule,
    computations: Sequence[Computation],
    row_dims: Sequence[Dim],
    outer: Sequence[str],
    at: Context,
    near: bool,
    choose: Choices,
) -> int:
    """Rows that are interleaved, statement by statement. One of less than two vectors has a single
    partial result, others have several vectors of them."""
    widest = max(math.prod(d.extent for d in c.dims) for c in computations)
    width = max(1, widest // max(1, math.prod(d.extent for d in row_dims)))
    costs = at.costs
    dtype = computations[-1].outputs[0].tensor.dtype
    itemsize = dtype.itemsize
    partial = costs.in_flight if width >= 2 * at.machine.lanes(dtype) else 1
    in_registers = at.machine.registers // (2 * partial)
    in_cache = at.machine.l1 // (costs.half * itemsize * width)
    along = sum(b.size >= widest for b in _tensors(computations))
    along_in_cache = at.machine.l1 // (max(1, along) * itemsize * width)
    most = min(in_cache, in_registers, along_in_cache)
    if not outer:
        return 1
    count = extents(s.kernel)[outer[-1]]
    longest = _longest_row(computations, costs)
    worth = near and width <= longest and count >= costs.many_rows
    good = most if worth else 1
    limit = in_cache if len(computations) > 1 else count
    possible = [n for n in ROWS if n <= max(1, min(limit, count))]
    usual = max(n for n in USUAL_ROWS if n <= max(1, min(most, count, good)))
    name = f"{computations[-1].name}.rows"
    return choose(name, possible, usual)


def _tensors(computations: Sequence[Computation]) -> set[Buffer]:
    read = {b for c in computations for b in c.inputs}
    return read | {o.tensor for c in computations for o in c.outputs}


def _longest_row(computations: Sequence[Computation], costs: CostModel) -> int:
    """Elements of a row that is worth interleaving with others.

    Where one reduction waits for another, as a variance for the mean, their ends take more of the
    time, unless functions of the row take most of it.
    """
    small = _row_values(computations)
    if any(a.buffer not in small for c in computations for a in arguments(c)):
        return costs.short_row
    later: set[Buffer] = set()  # what is computed from reductions
    for c in computations:
        waits = not later.isdisjoint(c.inputs)
        if waits and not c.is_map:
            return costs.chained_row
        if waits or not c.is_map:
            later |= {o.tensor for o in c.outputs}
    return costs.short_row


def _vectors(
    s: Schedule, p: RowLoop, overwritten: set[Buffer], at: Context, choose: Choices
) -> str | None:
    """One loop over a row in vectors; the name of the vector loop."""
    first = p.computations[0]
    lanes = at.machine.lanes(first.outputs[0].tensor.dtype)
    if p.reductions:
        return _partial_vectors(s, p, lanes, at.costs, choose)
    if p.loops:
        loop = p.loops[-1]
    else:
        loop = ""
    extent = extents(s.kernel).get(loop, 1)
    if extent == 1:
        return None
    vectors = choose(
        f"{first.name}.vectors", VECTORS, _in_flight(first, extent, lanes, at)
    )
    once = any(o.tensor in overwritten for c in p.computations for o in c.outputs)
    return vectorize_inner(s, loop, lanes, vectors, "guard" if once else "overlap")


def _in_flight(c: Computation, extent: int, lanes: int, at: Context) -> int:
    """Vectors of a map at a time: several where it is cheap, for then it waits for memory, and its
    row is in the first cache."""
    costs = at.costs
    block = costs.in_flight * lanes
    itemsize = c.outputs[0].tensor.dtype.itemsize
    fits = (
        costs.row_blocks * block <= extent < at.machine.l1 // itemsize // costs.quarter
    )
    if fits and extent % block == 0 and not arguments(c):
        return costs.in_flight
    return 1


def _fetches(
    computations: Sequence[Computation], rows: int, costs: CostModel
) -> dict[Computation, int]:
    """How many bytes ahead what Computations read of large data is fetched.

    Functions of long rows that were read before: the next row. Hardware does not fetch it while the
    current row comes from the cache. Where there are none, see `_fetched_first`.
    """
    seen: set[Buffer] = set()
    found: dict[Computation, int] = {}
    for c in computations:
        dims = free_dims(c)[:rows]
        for a in arguments(c):
            itemsize = a.dtype.itemsize
            if dims:
                pitch = (stride(address(a), dims[-1].var) or 0) * itemsize
            else:
                pitch = 0
            long = pitch * costs.quarter >= costs.machine.l1
            if a.buffer in seen and long and _is_large(a.buffer, costs):
                found[c] = pitch
        seen |= set(c.inputs)
    return found or _fetched_first(computations, costs)


def _fetched_first(
    computations: Sequence[Computation], costs: CostModel
) -> dict[Computation, int]:
    """What reads the only large tensor first, as far ahead as the processor gains by.

    Rows that others are made of wait for both, until they come from beyond the last cache. Two
    tensors are fetched side by side anyway.
    """
    made = {o.tensor for c in computations for o in c.outputs}  # a row of it, nearby
    read = {b for c in computations for b in c.inputs} - made
    large = [b for b in read if _is_large(b, costs)]
    if len(large) != 1:
        return {}
    result = _bytes(computations[-1].outputs[0].tensor)
    size = _bytes(large[0])
    if size <= result < costs.machine.l3 - size:
        return {}
    first = next(c for c in computations if large[0] in c.inputs)
    return {first: ahead_of_memory(costs)}


def ahead_of_memory(costs: CostModel) -> int:
    """How many bytes ahead a large tensor that is read in order is fetched."""
    return max(n for n in AHEAD if n <= costs.fetched)


def _is_large(b: Buffer, costs: CostModel) -> bool:
    return _bytes(b) >= costs.large * costs.machine.l2


def _bytes(b: Buffer) -> int:
    return b.size * b.dtype.itemsize


def _row_dims(
    last: Computation, computations: Sequence[Computation], alone: bool
) -> list[Dim]:
    """The leading free dimensions of the last Computation over which everything can be computed.

    alone: whether nothing else stays in memory, whose loops would have to have that order too.
    """
    if not last.is_map:
        return _streamed_first(last) if alone else free_dims(last)
    small = _row_values(computations)
    readers = [c for c in computations if c.is_map and not small.isdisjoint(c.inputs)]
    reader = readers[-1] if readers else last  # what is after it reads whole rows of it
    reads = [a for a in reader.accesses if a.buffer in small]
    found = 0
    for d in free_dims(reader):
        if reads and not all(_depends(a, d) for a in reads):
            break
        found += 1
    return free_dims(last)[:found]


def _streamed_first(c: Computation) -> list[Dim]:
    """The free dimensions of a reduction, with those of its largest tensor before the others.

    Each row of that tensor is then fully used while it is in the cache.
    """
    largest = max(c.accesses, key=lambda a: a.buffer.size)
    return sorted(free_dims(c), key=lambda d: not _depends(largest, d))


def _row_values(computations: Sequence[Computation]) -> set[Buffer]:
    """Results of reductions, and of maps over nothing but them (a variance's inverse root)."""
    found: set[Buffer] = set()
    for c in computations[:-1]:
        if not c.is_map or all(b in found for b in c.inputs):
            found |= {o.tensor for o in c.outputs}
    return found


def _depends(a: Load, d: Dim) -> bool:
    return any(uses(i, d.var) for i in a.index)


def _partial_vectors(
    s: Schedule, p: RowLoop, lanes: int, costs: CostModel, choose: Choices
) -> str | None:
    """A loop as vectors, each reduction in partial results; the vector loop."""
    name = p.loops[-1]
    extent = extents(s.kernel).get(name, 1)
    if extent < 2 * lanes:
        return None
    busy = len(p.computations) > 1 and any(arguments(c) for c in p.computations)
    few = busy or extent < 2 * costs.in_flight * lanes
    possible = [v for v in VECTORS if extent >= v * lanes]
    count = choose(
        f"{p.reductions[0].name}.vectors", possible, 1 if few else costs.in_flight
    )
    outer, inner = s.split(name, count * lanes, "guard")
    for c in p.reductions:
        before = set(s.loops)
        s.rfactor(
            inner, buffer=c.outputs[0].tensor.name if len(p.reductions) > 1 else None
        )
        clear, combine = (loop for loop in s.loops if loop not in before)
        tile_vectors(s, clear, lanes)
        s.vectorize(combine)
    if extent % (count * lanes):
        tile_vectors(s, last_tile(s, outer, inner), lanes)
    return tile_vectors(s, inner, lanes)
