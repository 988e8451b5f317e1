"""Scans (running sums): many at once, because each step depends on the one before.

Scans that are adjacent in memory are the lanes of vectors; scans along rows are interleaved,
several rows at a time, so that the additions of one hide the latency of another's.
"""

from __future__ import annotations

import math

from tilewright.compute.nodes import Computation, Dim
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.nest import extents
from tilewright.schedule.space.patterns import KernelPattern, address, free_dims, stride
from tilewright.targets.cpu.sketches.context import Context

VECTORS = (1, 2, 3, 4, 6, 8)  # of scans side by side, in flight at a time
ROWS = (1, 2, 3, 4, 6, 8, 12, 16)  # interleaved at a time
DEFAULT_VECTORS, DEFAULT_ROWS = (1, 2, 4), (1, 2, 4, 8)


def scans(
    s: Schedule, pattern: KernelPattern, at: Context, choose: Choices
) -> Schedule:
    """See the module's docstring.

    parameters: `<computation>.vectors` or `<computation>.rows` at a time; `<computation>.parallel`.
    """
    (c,) = pattern.computations
    dims = free_dims(c)
    if not dims:
        return s
    beside = next((d for d in dims if _beside(c, d)), None)
    last = dims[-1] if beside is None else beside
    outer = [_loop(c, d) for d in dims if d is not last]
    inner = _loop(c, last)
    if last is not dims[-1]:
        s.reorder(*outer, inner)
    if beside is None:
        possible = [n for n in ROWS if n <= last.extent]
        good = max(n for n in DEFAULT_ROWS if n <= last.extent)
        count = choose(f"{c.name}.rows", possible, good)
        outer += _blocks(s, inner, count)
        if count > 1:
            s.vthread(inner if last.extent == count else f"{inner}.i")
    else:
        lanes = min(at.machine.lanes(c.outputs[0].tensor.dtype), last.extent)
        possible = [n for n in VECTORS if n * lanes <= last.extent]
        good = max(n for n in DEFAULT_VECTORS if n * lanes <= last.extent)
        width = lanes * choose(f"{c.name}.vectors", possible, good)
        outer += _blocks(s, inner, width)
        s.vectorize(inner if last.extent == width else f"{inner}.i")
    points = math.prod(d.extent for d in c.dims)
    if at.threads(choose, c.name, at.costs.worth_sharing(points * at.costs.point_ns)):
        at.share(s, outer, choose, c.name)
    return s


def _loop(c: Computation, d: Dim) -> str:
    return f"{c.name}.{d.var.name}"


def _beside(c: Computation, d: Dim) -> bool:
    """Whether neighbors along `d` are neighbors in memory, or the same element, everywhere."""
    out = c.outputs[0]
    places = [out.tensor[out.index], *c.accesses]
    steps = [stride(address(a), d.var) for a in places]
    if steps[0] != 1:
        return False
    return all(step in (0, 1) for step in steps)


def _blocks(s: Schedule, loop: str, size: int) -> list[str]:
    """The loop in blocks; the loop over them, if there are several."""
    if extents(s.kernel)[loop] == size:
        return []
    if size > 1:
        return [s.split(loop, size, "overlap")[0]]
    return [loop]
