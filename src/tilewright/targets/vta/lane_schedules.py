"""Default schedules of ALU-only layers: maps, pooling, depthwise convolutions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    held: list[Buffer] = []
    for count in dict.fromkeys((threads, 1)):
        for sizes in _blocks(computations[-1]):
            made = _apply(Schedule(kernel), computations, sizes, count)
            if made is None:
                continue
            held = _allocated(made.kernel)
            if _size(held, of) * count <= of.depth:
                return made
    names = [b.name for b in held]
    raise too_large(names, _size(held, of), ACC, of.depth).at(f"kernel {kernel.name}")


def _blocks(last: Computation) -> Iterator[tuple[int, ...]]:
    """Extents of a block: a tile of channels, then as many rows as possible, then columns.

    The smallest comes last.
    """
    _, rows, columns, *tile = (d.extent for d in last.dims)
    for wide in reversed(shares(columns)):
        for high in reversed(shares(rows)):
            yield 1, high, wide, *tile


def _allocated(kernel: Kernel) -> list[Buffer]:
    return [p.stmt.buffer for p in walk(kernel.body) if isinstance(p.stmt, Alloc)]


def _size(buffers: Sequence[Buffer], of: Element) -> int:
    """How many elements they are."""
    return sum(b.size for b in buffers) // of.lanes


def _apply(
    s: Schedule, computations: Sequence[Computation], sizes: Sequence[int], threads: int
) -> Schedule | None:
    """The schedule with blocks of these sizes; None where there are too few for the threads."""
    *before, last = computations
    axis = None
    if threads > 1:
        counts = [
            -(-d.extent // size) for d, size in zip(last.dims, sizes, strict=True)
        ]
        axis = next(
            (at for at, n in enumerate(counts) if n > 1 and n % threads == 0), None
        )
        if axis is None:
            return None
    block = blocked(s, last, sizes, threads, axis)
    _stage(s, before, block)
    load_parameters(s, last, block)
    return s


def _stage(s: Schedule, before: Sequence[Computation], block: str) -> None:
    """Everything else in a block: reductions step by step, their terms at each step."""
    steps: dict[Computation, str] = {}
    for c in reversed(before):
        reader = next((r for r in steps if _is_term(c, r)), None)
        at = block if reader is None else steps[reader]
        s.compute_at(c.outputs[0].tensor.name, at, scope=ACC)
        if c.reducer is not None:
            steps[c] = _steps(s, c) or block


def _is_term(c: Computation, reader: Computation) -> bool:
    """Whether each iteration of a reduction reads an element of its own."""
    own = {d.var for d in reader.dims}
    made = c.outputs[0].tensor
    return any(x.buffer is made and set(x.index) == own for x in reader.accesses)


def _steps(s: Schedule, c: Computation) -> str | None:
    """The loops of a reduction go outside of those of its result; the last of them."""
    loops = [d for d in c.dims if d.extent > 1]
    kept = [f"{c.name}.{d.var.name}" for d in loops if d.combine == CC]
    steps = [f"{c.name}.{d.var.name}" for d in loops if d.combine != CC]
    s.decompose_reduction(c.outputs[0].tensor.name, kept[0])
    if not steps:
        return None
    s.reorder(*steps, *kept)
    return steps[-1]
