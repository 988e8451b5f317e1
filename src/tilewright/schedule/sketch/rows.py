"""Reductions along contiguous rows: softmax, layer normalisation, row sums.

All Computations of one row run together, intermediate rows in the cache; each reduction keeps
vectors of partial results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.compute.nodes import Computation, Dim
from tilewright.expr.nodes import Buffer, Call, Load
from tilewright.ir.node import postorder
from tilewright.loops.nodes import PREFETCH
from tilewright.schedule import Schedule
from tilewright.schedule.sketch.choices import Choices
from tilewright.schedule.sketch.classify import (
    Kind,
    address,
    free_dims,
    reduction_dims,
    stride,
    uses,
)
from tilewright.schedule.sketch.context import Context, Machine
from tilewright.schedule.sketch.nest import (
    UNROLLED_VECTORS,
    VECTORS,
    divisors,
    existing,
    extents,
    spread,
    vectorize_inner,
)
from tilewright.schedule.tree import find_buffer

PARALLEL_POINTS = 32_768
PARALLEL_TOTAL = 131_072  # points of one sum that take about 10 us
ROWS = (1, 2, 4)  # that may be interleaved
SHORT = 256  # elements of a row whose reductions' ends take as long as the rest,
MANY = 16  # rows of which are worth the longer code
INTERLEAVED = 4096  # elements of all rows that are interleaved
LARGE = 4  # times the second cache, and rows of
LONG = 4  # parts of the first cache, from which on a row takes its own time to come from memory
STACK_BYTES = 16_384  # of one intermediate row; longer ones go to the workspace


def rows(s: Schedule, kind: Kind, at: Context, choose: Choices) -> Schedule:
    """See the module's docstring.

    parameters: those of `in_rows`; `<last>.parallel`. Of a total, which has no rows,
    `<reduction>.parts`: results of parts of it, which are made at once and then combined.
    """
    computations = kind.computations
    points = sum(math.prod(d.extent for d in c.dims) for c in computations)
    if len(computations) == 1 and not free_dims(computations[0]):
        return _total(s, computations[0], points, at, choose)
    size = sum(b.size * b.dtype.itemsize for b in s.kernel.params)
    outer = in_rows(s, computations, at, choose, near=size <= at.machine.l2)
    if at.threads(choose, computations[-1].name, points >= PARALLEL_POINTS):
        spread(s, outer)
    return s


def _total(s: Schedule, c: Computation, points: int, at: Context, choose: Choices) -> Schedule:
    """One result of everything: parts on threads of their own, each in vectors."""
    loops = [f"{c.name}.{d.var.name}" for d in reduction_dims(c)]
    lanes = at.machine.lanes(c.outputs[0].tensor.dtype)
    count = reduction_dims(c)[0].extent
    possible = [n for n in divisors(at.machine.cores) if n <= count and not at.around]
    good = possible[-1] if points >= PARALLEL_TOTAL else 1
    parts = choose(f"{c.name}.parts", possible, good) if len(possible) > 1 else 1
    if parts > 1:
        tail = "exact" if count % parts == 0 else "cut"
        part, loops[0], *_ = s.split(loops[0], count // parts, tail)  # type: ignore[arg-type]
        s.rfactor(part, "global")
        s.parallel(part)
    _partial_vectors(s, c.name, loops[-1], lanes, choose)
    return s


def in_rows(
    s: Schedule, computations: Sequence[Computation], at: Context, choose: Choices, near: bool
) -> list[str]:
    """Everything of one row together, in vectors; the loops over rows, outermost first.

    near: whether the rows are in a cache of the core. parameters: `<computation>.vectors`, in
    flight at a time; `<last>.rows`, interleaved: one row's work fills the latency of another's.
    """
    last = computations[-1]
    row_dims = _row_dims(last, computations)
    outer = existing(s, [f"{last.name}.{d.var.name}" for d in row_dims])
    if outer:
        for c in reversed(computations[:-1]):
            for o in c.outputs:
                if o.tensor not in s.kernel.params:
                    s.compute_at(o.tensor.name, outer[-1])
                    place(s, o.tensor.name)
    fetch = _fetches(computations, len(row_dims), at.machine)
    for c in computations:
        vector = _vectors(s, c, row_dims if c is last else (), at, choose)
        if vector is not None and c in fetch:
            s.annotate(vector, PREFETCH, fetch[c])
    widest = max(math.prod(d.extent for d in c.dims) for c in computations)
    width = max(1, widest // max(1, math.prod(d.extent for d in row_dims)))
    most = min(INTERLEAVED // width, at.machine.registers // (2 * UNROLLED_VECTORS))
    if not outer or most < 2:
        return outer
    good = most if near and width <= SHORT and extents(s.kernel)[outer[-1]] >= MANY else 1
    return _interleaved(s, outer, most, f"{last.name}.rows", good, choose)


def _interleaved(
    s: Schedule, outer: list[str], most: int, name: str, good: int, choose: Choices
) -> list[str]:
    """At most so many rows at a time, statement by statement; the loops outside of them."""
    *before, row = outer
    possible = [n for n in ROWS if n <= min(most, extents(s.kernel)[row])]
    rows = choose(name, possible, max(n for n in possible if n <= good))
    if rows == 1:
        return outer
    block, inner = s.split(row, rows, "overlap")
    s.vthread(inner)
    return [*before, block]


def _vectors(
    s: Schedule, c: Computation, outer: Sequence[Dim], at: Context, choose: Choices
) -> str | None:
    """One Computation of a row in vectors; the name of the vector loop."""
    lanes = at.machine.lanes(c.outputs[0].tensor.dtype)
    if not c.is_map:
        loop = f"{c.name}.{reduction_dims(c)[-1].var.name}"
        return _partial_vectors(s, c.name, loop, lanes, choose)
    inner = [d for d in free_dims(c) if d not in outer]
    if not inner:
        return None
    vectors = choose(f"{c.name}.vectors", VECTORS, _in_flight(c, inner[-1].extent, lanes, at))
    return vectorize_inner(s, f"{c.name}.{inner[-1].var.name}", lanes, vectors)


def _in_flight(c: Computation, extent: int, lanes: int, at: Context) -> int:
    """Vectors of a map at a time: several where it is cheap, for then it waits for memory, and its
    row is in the first cache."""
    block = UNROLLED_VECTORS * lanes
    itemsize = c.outputs[0].tensor.dtype.itemsize
    fits = 4 * block <= extent < at.machine.l1 // itemsize // LONG
    return UNROLLED_VECTORS if fits and extent % block == 0 and not _arguments(c) else 1


def _fetches(
    computations: Sequence[Computation], rows: int, machine: Machine
) -> dict[Computation, int]:
    """Who computes functions of long rows of large data, read before: bytes to the next row.

    Memory can bring it meanwhile, which no prefetcher asks for while a row comes from the cache.
    """
    seen: set[Buffer] = set()
    found: dict[Computation, int] = {}
    for c in computations:
        dims = free_dims(c)[:rows]
        for a in _arguments(c):
            itemsize = a.dtype.itemsize
            pitch = (stride(address(a), dims[-1].var) or 0) * itemsize if dims else 0
            large = a.buffer.size * itemsize >= LARGE * machine.l2
            if a.buffer in seen and large and pitch * LONG >= machine.l1:
                found[c] = pitch
        seen |= set(c.inputs)
    return found


def _arguments(c: Computation) -> set[Load]:
    """What functions (exp, tanh) are called of."""
    calls = [n for o in c.outputs for n in postorder(o.value) if isinstance(n, Call)]
    return {n for call in calls for n in postorder(call) if isinstance(n, Load)}


def _row_dims(last: Computation, computations: Sequence[Computation]) -> list[Dim]:
    """The leading free dimensions of the last Computation over which everything can be computed."""
    if not last.is_map:
        return free_dims(last)
    small = _row_values(computations)
    reads = [a for a in last.accesses if a.buffer in small]
    found: list[Dim] = []
    for d in free_dims(last):
        if reads and not all(_depends(a, d) for a in reads):
            break
        found.append(d)
    return found


def _row_values(computations: Sequence[Computation]) -> set[Buffer]:
    """Results of reductions, and of maps over nothing but them (a variance's inverse root)."""
    found: set[Buffer] = set()
    for c in computations[:-1]:
        if not c.is_map or all(b in found for b in c.inputs):
            found |= {o.tensor for o in c.outputs}
    return found


def _depends(a: Load, d: Dim) -> bool:
    return any(uses(i, d.var) for i in a.index)


def place(s: Schedule, name: str) -> None:
    """A small buffer into registers or onto the stack, a large one into the workspace."""
    buffer, _ = find_buffer(s.kernel, name, "set_scope")
    size = buffer.size * buffer.dtype.itemsize
    scope = "register" if buffer.size == 1 else "stack" if size <= STACK_BYTES else "global"
    s.set_scope(name, scope)


def _partial_vectors(s: Schedule, c: str, name: str, lanes: int, choose: Choices) -> str | None:
    """A reduction loop as vectors of partial results, combined at the end; the vector loop."""
    extent = extents(s.kernel).get(name, 1)
    if extent < 2 * lanes:
        return None
    good = UNROLLED_VECTORS if extent >= 2 * UNROLLED_VECTORS * lanes else 1
    count = choose(f"{c}.vectors", [v for v in VECTORS if extent >= v * lanes], good)
    tail = "exact" if extent % (count * lanes) == 0 else "cut"
    _, inner = s.split(name, count * lanes, tail)[:2]  # type: ignore[arg-type]
    s.rfactor(inner)
    for loop in (f"{inner}.clear", inner):
        if count > 1:
            block, vector = s.split(loop, lanes)
            s.unroll(block)
            s.vectorize(vector)
        else:
            s.vectorize(loop)
    s.vectorize(f"{inner}.combine")
    return vector if count > 1 else inner
