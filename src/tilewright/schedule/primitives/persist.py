"""persist: fewer blocks than tiles, each of which computes several, one after another."""

from __future__ import annotations

from tilewright.loops.analysis.access import environment
from tilewright.loops.nodes import Kernel
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import part_of, refuse
from tilewright.schedule.primitives.bind import bind
from tilewright.schedule.primitives.reorder import reorder
from tilewright.schedule.primitives.split import split
from tilewright.schedule.registry import primitive


@primitive
def persist(
    kernel: Kernel, loop: str, blocks: int, axis: str = "blockIdx.x"
) -> tuple[Kernel, tuple[str, str]]:
    """Run the iterations of a loop, tiles, in so many blocks of a GPU, each with several of them.

    args: the loop over tiles; how many blocks there are: as many as the machine runs at once;
        their axis. Returns the loop over blocks, and that over the tiles of one, which are
        `blocks` apart: tiles that are computed at the same time are neighbors.
    requires: a constant extent of at least as many iterations as blocks; what reorder requires of
        the order, and bind of the blocks.
    before: for t in n: B(t)
    after:  for t.i in blocks blockIdx.x: for t.o in ceil(n/blocks):
              if t.o*blocks + t.i < n: B(t.o*blocks + t.i)
    """
    f, _ = tree.find_loop(kernel, loop, "persist")
    n = tree.trips(f, "persist")
    if not 1 <= blocks <= n:
        raise refuse(
            "persist",
            loop,
            f"{blocks} blocks have no tile each: there are {n}",
            f"take 1 to {n} blocks",
        )
    with part_of("persist"):
        kernel, (tiles, block) = split(kernel, loop, blocks, tail="guard")
        kernel, _ = reorder(kernel, block, tiles)
        kernel, _ = bind(kernel, block, axis)
    f, place = tree.find_loop(kernel, block, "persist")
    kernel = edit.put(kernel, place, edit.tidy_comparisons(f, environment(kernel.body)))
    return kernel, (block, tiles)
