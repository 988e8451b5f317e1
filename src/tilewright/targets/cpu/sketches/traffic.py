"""The cost of a contraction, including data fetched from beyond the second cache.

The register tile's own model (`tiles.py`) counts the instructions of one step of the reduction. It
ignores that rows of a deep reduction may span more memory than the second cache holds: then each
tile fetches them again, in separate pieces if its steps leave gaps in memory.
"""

from __future__ import annotations

import math

from tilewright.base.numbers import ceil_div
from tilewright.compute.contraction import is_contraction
from tilewright.compute.nodes import Computation
from tilewright.compute.transforms import environment
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import Load, Var
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.patterns import (
    KernelPattern,
    address,
    free_dims,
    reduction_dims,
    stride,
)
from tilewright.targets.cpu.sketches.context import Context
from tilewright.targets.cpu.sketches.dot_products import Dot, dot
from tilewright.targets.cpu.sketches.groups import in_best_form
from tilewright.targets.cpu.sketches.roles import default_tile


def products(pattern: KernelPattern, at: Context) -> float | None:
    """Cycles of a contraction at the rate of its multiply-adds, or of its dot products in vectors,
    summed over all cores; None for any other Computation."""
    r = pattern.reduction
    if r is None or not is_contraction(r):
        return None
    pattern = in_best_form(pattern, at)
    r, costs = pattern.reduction or r, at.costs
    d = dot(pattern, at, Choices())
    if d is not None and d.tile is not None:
        d = None  # counted as vectors are: what parts of such a sum take was never measured
    roles, tile, gain = default_tile(pattern, at, None if d is None else d.vector)
    made = _steps(r, d) / max(gain, 1e-6) / _rate(r, d, at)
    tiles = math.prod(x.extent for x in roles.batch)
    tiles *= ceil_div(roles.vector.extent, tile.width)
    tiles *= math.prod(
        ceil_div(x.extent, f) for x, f in zip(roles.rows, tile.rows, strict=True)
    )
    line = at.machine.line
    far = [a for a in roles.across if _reach(r, a) > costs.full * at.machine.l2]
    pieces = sum(_pieces(r, a, line) for a in far)
    out = r.outputs[0].tensor
    size = math.prod(x.extent for x in free_dims(r)) * out.dtype.itemsize
    written = 2 * size * costs.far_byte  # and read again by what follows
    return made + tiles * pieces * costs.far_piece + written


def _steps(r: Computation, d: Dot | None) -> float:
    """Multiply-adds of the whole, those with the padding of a depth included."""
    points = math.prod(x.extent for x in r.dims)
    if d is None:
        return points
    depth = d.depth.extent
    return points * ceil_div(depth, d.inside) * d.inside / depth


def _rate(r: Computation, d: Dot | None, at: Context) -> float:
    """Multiply-adds per cycle that could issue, in whole vectors."""
    if d is not None:
        return at.costs.dot_products * d.lanes * d.word
    dtype = r.outputs[0].tensor.dtype
    return at.costs.products(at.machine.lanes(dtype), dtype.itemsize)


def _reach(r: Computation, a: Load) -> int:
    """Bytes between the first and the last element that one step of the batch reads, as a box."""
    batch = {d.var: (0, 0) for d in r.dims if _alone(r, a, d.var)}
    env = environment(r.dims) | batch
    size = a.dtype.itemsize
    for index in a.index:
        low, high = bounds(index, env)
        size *= 1 if low is None or high is None else high - low + 1
    return size


def _alone(r: Computation, a: Load, v: Var) -> bool:
    """Whether a batch dimension indexes the read; these are outermost by default."""
    free = free_dims(r)
    others = [x for x in r.accesses if x is not a]
    return any(d.var is v for d in free) and all(
        stride(address(x), v) for x in (a, *others)
    )


def _pieces(r: Computation, a: Load, line: int) -> int:
    """Pieces of memory, with a gap of a line or more between them, that one row of a tile reads;
    0 for a single one."""
    size = a.dtype.itemsize
    steps = {d: abs(stride(address(a), d.var) or 0) * size for d in reduction_dims(r)}
    run = size  # bytes of a piece, by the dimensions so far
    apart = []
    for d, step in sorted(steps.items(), key=lambda found: found[1]):
        if step > max(run, line):
            apart.append(d.extent)
        else:
            run += step * (d.extent - 1)
    return math.prod(apart) if apart else 0
