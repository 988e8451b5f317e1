"""A reduction in parts: partial results first, and then what they are together.

    r[i] = sum over k of f(i, k)        p[b, i] = sum over k of f(i, b * n + k)
                                        r[i]    = sum over b of p[b, i]

Parts are runs of consecutive points, combined in their order, so that the operator need not commute
where one dimension is reduced, and results are the same in each run.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.compute.nodes import CC, Computation, Dim, Output
from tilewright.expr.nodes import INDEX, Buffer, Expr, Load, Var
from tilewright.ir.node import Node, substitute

PART = ".part"


def in_two_passes(c: Computation, parts: Mapping[Dim, int]) -> list[Computation]:
    """The computations of partial results and of the result; `c` alone without parts.

    parts: how many there are of reduced dimensions, dividing their extents.
    """
    if not parts:
        return [c]
    blocks: list[Dim] = []
    reduced: dict[Dim, Dim] = {}
    env: dict[Node, Node] = {}
    for d, count in parts.items():
        block = Var(f"{d.var.name}{PART}", INDEX)
        inside = Var(d.var.name, INDEX)
        length = d.extent // count
        blocks.append(Dim(block, count, CC))
        reduced[d] = Dim(inside, length, d.combine)
        env[d.var] = block * length + inside

    buffers: dict[Buffer, Buffer] = {}
    first: list[Output] = []
    last: list[Output] = []
    place = tuple(d.var for d in blocks)
    results = {d: Var(d.var.name, INDEX) for d in parts}
    read: tuple[Expr, ...] = tuple(results.values())
    for o in c.outputs:
        if o.tensor not in buffers:
            shape = (*parts.values(), *o.tensor.shape)
            name = f"{o.tensor.name}{PART}"
            buffers[o.tensor] = Buffer(name, shape, o.tensor.dtype)
        partial = buffers[o.tensor]
        value: Expr = substitute(o.value, env)
        first.append(Output(partial, (*place, *o.index), value))
        found = Load(partial, (*read, *o.index))
        last.append(Output(o.tensor, o.index, found))

    own = tuple(reduced.get(d, d) for d in c.dims)
    free = tuple(d for d in c.dims if d.combine == CC)
    combined = tuple(Dim(v, parts[d], d.combine) for d, v in results.items())
    return [
        Computation(f"{c.name}{PART}", (*blocks, *own), tuple(first), c.reducer),
        Computation(c.name, (*free, *combined), tuple(last), c.reducer),
    ]
