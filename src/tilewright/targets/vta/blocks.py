"""Blocks of a result: its split loops, a loop over virtual threads, and what each block loads."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dtypes import int32
from tilewright.compute.nodes import Computation
from tilewright.schedule import Schedule
from tilewright.targets.vta.intrinsics import ACC


def blocked(
    s: Schedule, last: Computation, sizes: Sequence[int], threads: int, axis: int | None
) -> str:
    """Split the loops of the last Computation into blocks; the loop whose body is one block.

    sizes: extents of a block; where they do not divide the dimension's, the last block overlaps
    the one before. axis: the dimension whose neighboring blocks are virtual threads; their number
    divides its blocks. None: no threads.
    """
    loops = [
        (at, d) for at, d in enumerate(last.dims) if d.extent > 1
    ]  # the others are not loops
    # One loop around a block there must be, if only of one turn.
    cut = [at for at, d in loops if sizes[at] < d.extent] or [loops[0][0]]
    outer: dict[int, str] = {}
    inner: list[str] = []
    for at, d in loops:
        name = f"{last.name}.{d.var.name}"
        if at in cut:
            outer[at], name = s.split(name, sizes[at], "overlap")
        inner.append(name)
    s.reorder(*outer.values(), *inner)
    if axis is None:
        return list(outer.values())[-1]
    outer[axis], thread = s.split(outer[axis], threads)
    s.reorder(*outer.values(), thread)
    s.bind(thread, "vthread")
    return thread


def load_parameters(s: Schedule, last: Computation, block: str) -> None:
    """What the last Computation reads of the caller, to accumulators, block by block."""
    for x in dict.fromkeys(load.buffer for load in last.accesses):
        if x.dtype is int32 and x in s.kernel.params:
            s.cache_read(x.name, block, ACC)
