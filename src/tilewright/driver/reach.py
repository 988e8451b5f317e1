"""Where a kernel may access its results: the box around what its Computations write and read.

A result may be the inside of a halo, or a piece of a concatenation: the rest of its memory is
there, but is not this kernel's. Inputs may be read everywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tilewright.compute.laws import environment
from tilewright.compute.nodes import Computation
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import Buffer, Expr, Var

Box = tuple[tuple[int, int], ...]


def reach(group: Sequence[Computation], outputs: Collection[Buffer]) -> dict[Buffer, Box]:
    """The least box around what the group writes and reads of each output, within its shape."""
    found: dict[Buffer, Box] = {}
    for c in group:
        env = environment(c.dims)
        places = [(o.tensor, o.index) for o in c.outputs]
        places += [(a.buffer, a.index) for a in c.accesses]
        for buffer, index in places:
            if buffer in outputs:
                box = tuple(_ends(i, n, env) for i, n in zip(index, buffer.shape, strict=True))
                found[buffer] = _around(found.get(buffer, box), box)
    return found


def _ends(index: Expr, extent: int, env: Mapping[Var, tuple[int, int]]) -> tuple[int, int]:
    low, high = bounds(index, env)
    return max(0, low or 0), extent - 1 if high is None else min(high, extent - 1)


def _around(one: Box, other: Box) -> Box:
    return tuple((min(a, c), max(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
