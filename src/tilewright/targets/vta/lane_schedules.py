"""Default schedules of ALU-only layers: maps, pooling, depthwise convolutions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from tilewright.base.errors import TilewrightError
from tilewright.compute.nodes import CC, Computation
from tilewright.expr.nodes import Buffer
from tilewright.loops.nodes import Alloc, Kernel
from tilewright.loops.walk import walk
from tilewright.schedule import Schedule
from tilewright.targets.vta.blocks import blocked, load_parameters
from tilewright.targets.vta.config import VTAConfig
from tilewright.targets.vta.intrinsics import ACC, Element, elements
from tilewright.targets.vta.tiling import shares, too_large


def lanes_scheduled(
    kernel: Kernel, computations: Sequence[Computation], threads: int, config: VTAConfig
) -> Schedule:
    """A plain kernel in the largest blocks that fit the accumulators, once per virtual thread.

    Everything is computed in the blocks of the last Computation. Raises CompileError, with what the
    accumulators would have to hold, if not even the smallest fits.
    """
    of = elements(config)[ACC]
    found = (
        _tallest(kernel, computations, wide, count, of)
        for count in dict.fromkeys((threads, 1))
        for wide in reversed(shares(computations[-1].dims[2].extent))
    )
    best = next((s for s in found if s is not None), None)
    if best is None:
        raise _too_large(kernel, computations, of)
    return best


def _too_large(
    kernel: Kernel, computations: Sequence[Computation], of: Element
) -> TilewrightError:
    """What the block of a single point needs."""
    tile = [d.extent for d in computations[-1].dims[3:]]
    smallest = _apply(Schedule(kernel), computations, (1, 1, 1, *tile), 1)
    held = _allocated(smallest.kernel)
    error = too_large([b.name for b in held], _size(held, of), ACC, of.depth)
    return error.at(f"kernel {kernel.name}")


def _tallest(
    kernel: Kernel,
    computations: Sequence[Computation],
    wide: int,
    threads: int,
    of: Element,
) -> Schedule | None:
    """Blocks of a tile of channels, `wide` columns and as many rows as fit; None if none does."""
    last = computations[-1]
    _, rows, _, *tile = (d.extent for d in last.dims)

    def made(high: int) -> Schedule:
        return _apply(Schedule(kernel), computations, (1, high, wide, *tile), threads)

    def full(high: int) -> bool:
        return _size(_allocated(made(high).kernel), of) * threads > of.depth

    heights = [
        high
        for high in shares(rows)
        if threads == 1 or _shared(last, (1, high, wide, *tile), threads) is not None
    ]
    if not heights or full(heights[0]):
        return None
    if full(heights[-1]):
        # More rows take more accumulators.
        heights = heights[: bisect_left(heights, True, key=full)]
    return made(heights[-1])


def _allocated(kernel: Kernel) -> list[Buffer]:
    return [p.stmt.buffer for p in walk(kernel.body) if isinstance(p.stmt, Alloc)]


def _size(buffers: Sequence[Buffer], of: Element) -> int:
    """How many elements they are."""
    return sum(b.size for b in buffers) // of.lanes


def _apply(
    s: Schedule, computations: Sequence[Computation], sizes: Sequence[int], threads: int
) -> Schedule:
    """The schedule with blocks of these sizes."""
    *before, last = computations
    axis = _shared(last, sizes, threads) if threads > 1 else None
    block = blocked(s, last, sizes, threads, axis)
    _stage(s, before, block)
    load_parameters(s, last, block)
    return s


def _shared(last: Computation, sizes: Sequence[int], threads: int) -> int | None:
    """The first dimension whose blocks virtual threads can share; None where there is none."""
    counts = (-(-d.extent // size) for d, size in zip(last.dims, sizes, strict=True))
    return next((at for at, n in enumerate(counts) if n > 1 and n % threads == 0), None)


def _stage(s: Schedule, before: Sequence[Computation], block: str) -> None:
    """Everything else in a block: reductions step by step, their terms at each step."""
    steps: dict[Computation, str] = {}
    for c in reversed(before):
        reader = next((r for r in steps if _is_term(c, r)), None)
        if reader is None:
            at = block
        else:
            at = steps[reader]
        s.compute_at(c.outputs[0].tensor.name, at, scope=ACC)
        if c.reducer is not None:
            steps[c] = _steps(s, c) or block


def _is_term(c: Computation, reader: Computation) -> bool:
    """Whether each iteration of a reduction reads its own element."""
    own = {d.var for d in reader.dims}
    made = c.outputs[0].tensor
    return any(x.buffer is made and set(x.index) == own for x in reader.accesses)


def _steps(s: Schedule, c: Computation) -> str | None:
    """Move the loops of a reduction outside those of its result; returns the last of them."""
    loops = [d for d in c.dims if d.extent > 1]
    kept = [f"{c.name}.{d.var.name}" for d in loops if d.combine == CC]
    steps = [f"{c.name}.{d.var.name}" for d in loops if d.combine != CC]
    s.decompose_reduction(c.outputs[0].tensor.name, kept[0])
    if not steps:
        return None
    s.reorder(*steps, *kept)
    return steps[-1]
