"""Products with packed block weights: two sums; the inner one stays in registers.

A tile of rows and vectors of columns has two sets of accumulators. A block's accumulators are
cleared, filled with products of integers extracted from their words, scaled and added to the other
set. Weights are stored in the order in which tiles read them, so a product with one row is one pass
over memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType, int32
from tilewright.compute.nodes import Computation
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.nest import (
    VECTORS,
    existing,
    extents,
    fetched_ahead,
    indexing,
    register_vectors,
    start_apart,
)
from tilewright.schedule.space.patterns import (
    KernelPattern,
    free_dims,
    nested_dims,
    reduction_dims,
)
from tilewright.targets.cpu.sketches.context import Context
from tilewright.targets.cpu.sketches.rows import ahead_of_memory
from tilewright.targets.cpu.sketches.tiled_reduction import results

ROWS = (1, 2, 3, 4, 6, 8)  # of a tile that may be tried


@dataclass(frozen=True, slots=True)
class _Tile:
    """Sizes of a tile; intrinsic: what multiplies bytes in it, if there is one."""

    rows: int
    vectors: int
    lanes: int
    intrinsic: str | None


@dataclass(frozen=True, slots=True)
class _Nest:
    """Loops: over blocks; those inside the inner and of the outer sum, outermost first; the one
    over a vector's lanes of the inner sum."""

    block: str
    inner: Sequence[str]
    outer: Sequence[str]
    lane: str


def block_scaled(
    s: Schedule, pattern: KernelPattern, at: Context, choose: Choices
) -> Schedule:
    """See the module's docstring.

    parameters: `<reduction>.rows` and `<reduction>.vectors` of a tile; `<reduction>.intrinsic`,
    whether the machine's dot product of bytes makes the inner sums; `<reduction>.prefetch` of the
    weights; `<reduction>.parallel`, `<reduction>.shared`.
    """
    inner, outer = pattern.computations[:2]
    column = pattern.vector
    assert column is not None
    tile = _tile(pattern, at, choose)
    target, names = results(s, replace(pattern, reduction=outer))
    loops, tiles = [], []
    sizes = dict.fromkeys(free_dims(outer), tile.rows)
    sizes[column] = tile.vectors * tile.lanes
    for d, size in sizes.items():
        name = names[d]
        if d.extent > size:
            around, name = s.split(name, size, "overlap")
            loops.append(around)
        tiles.append(name)
    loops = loops[::-1]  # a panel of columns stays in the cache while rows go by
    if len(loops) + len(tiles) > 1:
        s.reorder(*loops, *tiles)
    if loops:
        s.compute_at(target, loops[-1], scope="register")
    else:
        s.set_scope(target, "register")
    n = _accumulate(s, pattern, target, tile)
    for name in tiles[:-1]:
        s.unroll(name)
    register_vectors(s, tiles[-1], tile.lanes)
    for c, inside in ((inner, n.inner), (outer, n.outer)):
        _pack(s, c, [*at.around, *loops, n.block, *inside], at)
    if tile.intrinsic is not None:
        s.tensorize(n.lane, tile.intrinsic)
    else:
        fetched_ahead(s, n.lane, choose, outer.name, _ahead(inner, at))
    if at.threads(choose, outer.name, at.costs.worth_sharing(_work(inner, at))):
        at.share(s, loops, choose, outer.name)
    return s


def _ahead(inner: Computation, at: Context) -> int:
    """How many bytes ahead the weights are fetched: unpacking them leaves memory idle.

    Those of other kernels displace what the first cache does not hold.
    """
    sizes = [b.size * b.dtype.itemsize for b in inner.inputs if b in at.constants]
    return ahead_of_memory(at.costs) if max(sizes, default=0) > at.machine.l1 else 0


def _work(inner: Computation, at: Context) -> float:
    """Nanoseconds of the products on one core."""
    return math.prod(d.extent for d in inner.dims) * at.costs.product_ns


def _tile(pattern: KernelPattern, at: Context, choose: Choices) -> _Tile:
    """Two sets of accumulators of a tile fill the registers; the outer ones may be spilled."""
    inner, outer = pattern.computations[:2]
    column = pattern.vector
    assert column is not None
    sums, costs = inner.outputs[0].tensor.dtype, at.costs
    lanes = at.machine.lanes(sums)
    name = outer.name
    dot = at.machine.block_dot(_bits(inner)) if sums is int32 else None
    if dot is not None and column.extent >= lanes:
        dot = choose(f"{name}.intrinsic", (dot, None), dot)
    rows = [d.extent for d in free_dims(outer) if d is not column]
    possible = [n for n in ROWS if n <= (rows[-1] if rows else 1)]
    good = max(n for n in possible if n <= at.machine.registers // costs.in_flight)
    tall = choose(f"{name}.rows", possible, good)
    wide = [n for n in VECTORS if n <= max(1, column.extent // lanes)]
    most = min(costs.in_flight, max(1, at.machine.registers // (2 * good)))
    if dot is None:
        most = max(most, _in_flight(good, sums, at))
    vectors = choose(f"{name}.vectors", wide, max(n for n in wide if n <= most))
    return _Tile(tall, vectors, min(lanes, column.extent), dot)


def _in_flight(rows: int, sums: DType, at: Context) -> int:
    """Vectors of columns for which multiply-adds need not wait for one another, at most as many as
    the registers hold with both sums and the words."""
    rate = at.costs.multiply_rate(at.machine.lanes(sums), sums.itemsize)
    return min(
        int(rate * at.costs.latency / rows), at.machine.registers // (2 * rows + 1)
    )


def _bits(inner: Computation) -> int:
    """Of an integer: those of a byte, by the parts that a byte is cut into."""
    _, *parts, _ = inner.combined_dims
    return 8 // math.prod(d.extent for d in parts)


def _accumulate(s: Schedule, pattern: KernelPattern, target: str, tile: _Tile) -> _Nest:
    """Both sums in registers."""
    inner, outer = pattern.computations[:2]
    of = nested_dims(inner, outer)
    column = pattern.vector
    assert column is not None and of is not None
    free = [d for d in free_dims(outer) if d is not column]
    far = [f"{outer.name}.{d.var.name}" for d in free]
    near = [f"{inner.name}.{of[d].var.name}" for d in free]
    wide, lane = (
        f"{outer.name}.{column.var.name}",
        f"{inner.name}.{of[column].var.name}",
    )
    (block,) = (f"{outer.name}.{d.var.name}" for d in reduction_dims(outer))
    far = existing(s, far)
    starts = start_apart(s, target, (*far, wide))
    s.reorder(block, *far, wide)
    made = inner.outputs[0].tensor.name
    s.compute_at(made, block, scope="register")
    near = existing(s, near)
    depth = [f"{inner.name}.{d.var.name}" for d in reduction_dims(inner)]
    first = start_apart(s, made, (*near, lane))
    for name in (*far, *near, *(starts[n] for n in far), *(first[n] for n in near)):
        s.unroll(name)
    register_vectors(s, starts[wide], tile.lanes)
    register_vectors(s, first[lane], tile.lanes)
    after = register_vectors(s, wide, tile.lanes)
    if tile.intrinsic is None:
        s.reorder(*depth, *near, lane)
        for name in depth[1:]:
            s.unroll(name)
        vectors = register_vectors(s, lane, tile.lanes)
        return _Nest(block, [*depth, *near, *vectors], after, vectors[-1])
    vectors = ()
    if extents(s.kernel)[lane] > tile.lanes:
        around, lane = s.split(lane, tile.lanes)
        s.unroll(around)
        vectors = (around,)
    words = existing(s, depth[: -2 if tile.intrinsic.endswith("4") else -1])
    rest = [n for n in depth if n not in words]
    s.reorder(*words, *near, *vectors, lane, *rest)
    return _Nest(block, [*words, *near, *vectors, lane, *rest], after, lane)


def _pack(s: Schedule, c: Computation, loops: Sequence[str], at: Context) -> None:
    """Pack constant operands that have columns in the order in which tiles read them."""
    for a in c.accesses:
        if a.buffer in at.constants and a.buffer.size > 1:
            names = indexing(s, a.buffer.name, existing(s, loops))
            if names:
                s.pack(a.buffer.name, *names)
