"""tile: a nest of loops in tiles."""

from __future__ import annotations

from tilewright.loops.nodes import Kernel
from tilewright.schedule.legality import part_of, refuse
from tilewright.schedule.primitives.reorder import reorder
from tilewright.schedule.primitives.split import Tail, split
from tilewright.schedule.registry import primitive


@primitive
def tile(
    kernel: Kernel, *loops_and_factors: str | int, tail: Tail = "exact"
) -> tuple[Kernel, tuple[str, ...]]:
    """Run the loops of a nest as tiles; returns the outer loops, then the inner ones.

    args: n loops of one perfect nest, then the n sizes of a tile; tail as in split, but not cut,
        which would leave more than one nest.
    requires: what split requires of each loop, and reorder of the order: all outer loops in the
        order given, then all inner ones.
    before: for i in m: for j in n: B(i, j)
    after:  for i.o in m/f: for j.o in n/g: for i.i in f: for j.i in g: B(i.o*f + i.i, j.o*g + j.i)
    """
    n = len(loops_and_factors) // 2
    loops = [str(x) for x in loops_and_factors[:n]]
    factors = [x for x in loops_and_factors[n:] if isinstance(x, int)]
    if not n or not n == len(factors) == len(loops_and_factors) - n or tail == "cut":
        given = ", ".join(map(repr, loops_and_factors))
        raise refuse(
            "tile",
            ", ".join(loops),
            f"({given}) with tail={tail!r} is not n loops and then n factors, without tail='cut'",
            "as tile('i', 'j', 4, 8)",
        )
    outer = []
    inner = []
    with part_of("tile"):
        for name, factor in zip(loops, factors, strict=True):
            kernel, (o, i) = split(kernel, name, factor, tail=tail)
            outer.append(o)
            inner.append(i)
        kernel, _ = reorder(kernel, *outer, *inner)
    return kernel, (*outer, *inner)
