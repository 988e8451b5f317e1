"""What a contraction costs with what it fetches from behind the second cache.

The register tile's own model (`tiles.py`) counts the instructions of one step of the reduction. It
leaves out that rows of a deep reduction may lie in more memory than the second cache holds: then
each tile fetches them anew, in as many pieces as its steps go through memory with gaps.
"""

from __future__ import annotations

import math

from tilewright.compute.laws import environment
from tilewright.compute.nodes import Computation
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import Load, Var
from tilewright.graph.stages import is_contraction
from tilewright.schedule.sketch.classify import Kind, address, free_dims, reduction_dims, stride
from tilewright.schedule.sketch.context import Context
from tilewright.schedule.sketch.roles import default_tile
from tilewright.schedule.sketch.tiles import FAR_BYTE, FULL

LINE = 64  # bytes that a cache fetches at a time
# Cycles of a piece of memory with a gap before it, from behind the second cache: nothing foresees
# it, and a page that was not used lately is looked up first. Measured as what a dilated convolution
# of 2048 channels takes per channel and row of its window beyond its arithmetic (Zen 4: 16).
FAR_PIECE = 16.0


def products(kind: Kind, at: Context) -> float | None:
    """Cycles of a contraction, two vectors of multiply-adds issued in each, of all cores together;
    None for what is not one."""
    r = kind.reduction
    if r is None or not is_contraction(r):
        return None
    roles, tile, gain = default_tile(kind, at)
    work = math.prod(d.extent for d in r.dims) / max(gain, 1e-6)
    tiles = math.prod(d.extent for d in roles.batch) * -(-roles.vector.extent // tile.width)
    tiles *= math.prod(-(-d.extent // f) for d, f in zip(roles.rows, tile.rows, strict=True))
    pieces = sum(_pieces(r, a) for a in roles.across if _reach(r, a) > FULL * at.machine.l2)
    out = r.outputs[0].tensor
    made = math.prod(d.extent for d in free_dims(r)) * out.dtype.itemsize
    written = 2 * made * FAR_BYTE  # and read again by what follows
    return work / (2 * tile.lanes) + tiles * pieces * FAR_PIECE + written


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
    """Whether a dimension of the batch, outermost by default, indexes the read: it goes by last."""
    free = free_dims(r)
    others = [x for x in r.accesses if x is not a]
    return any(d.var is v for d in free) and all(stride(address(x), v) for x in (a, *others))


def _pieces(r: Computation, a: Load) -> int:
    """Pieces of memory, a line or more apart, that one row of a tile reads."""
    size = a.dtype.itemsize
    steps = {d: abs(stride(address(a), d.var) or 0) * size for d in reduction_dims(r)}
    near = sum(s * (d.extent - 1) for d, s in steps.items() if s < LINE)
    apart = [d.extent for d, s in steps.items() if s > max(near, LINE)]
    return math.prod(apart) if len(apart) else 0
