"""A grouped convolution, and the map after it, as one convolution and one map per group.

    t[j] = sum[k] x[j // size * depth + k] * w[j, k]          y[f(j)] = g(t[j], j)

    =  t_n[j] = sum[k] x[n * depth + k] * w[n * size + j, k]  y[f(n * size + j)] = g(t_n[j], ..)

for every group n, j below `size`. Laws about convolutions of one group then apply to each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from tilewright.compute.nodes import Computation, Dim, Output
from tilewright.compute.transforms import (
    environment,
    identity_dims,
    map_loads,
    map_outputs,
)
from tilewright.expr.nodes import Buffer, Const, Expr, FloorDiv, Load
from tilewright.expr.simplify import simplify
from tilewright.ir.node import postorder, substitute

GROUPS = 8  # at most: each has code of its own

GroupPart = tuple[Computation, Computation]


def by_group(c: Computation, after: Computation | None) -> list[GroupPart] | None:
    """For each group its reduction and its map; None for anything else.

    after: a map that reads the result of `c`; None: the result is copied.

    requires, else None:

        `c` is a reduction that writes all of one tensor and does not read it
        one kept dimension is divided in its reads, always by one number that divides its extent
            into at most GROUPS groups
        the map reads the tensor, always with one of its own dimensions for that axis, and writes
            nothing that it or `c` reads: the next group reads it after that

    All maps together write what the one did. The tensor itself is no longer written: nothing else
    may read it.
    """
    axes = identity_dims(c)
    if axes is None or c.reducer is None or c.outputs[0].tensor in c.inputs:
        return None
    divided = _divided(c)
    if divided is None:
        return None
    along, size = divided
    axis = axes.index(along)
    (out,) = c.outputs
    if after is None:
        value = Load(out.tensor, out.index)
        copied = replace(out, value=value)
        after = Computation(
            f"{c.name}_copy",
            c.parallel_dims,
            (copied,),
        )
    elif not after.is_map or _is_read(after, (c, after)):
        return None
    own = _own(after, out.tensor, axis)
    if own is None or own.extent != along.extent:
        return None
    found = []
    for n in range(along.extent // size):
        first = n * size
        shape = list(out.tensor.shape)
        shape[axis] = size
        part = Buffer(
            f"{out.tensor.name}_g{n}",
            tuple(shape),
            out.tensor.dtype,
        )
        reduced = _points(c, along, first, size)
        total = reduced.outputs[0].value
        made = Output(part, out.index, total)
        reduced = replace(reduced, outputs=(made,))
        moved = {out.tensor: (part, axis)}
        mapped = _points(after, own, first, size, moved)
        found.append((reduced, mapped))
    return found


def _is_read(after: Computation, by: Sequence[Computation]) -> bool:
    """Whether what a map writes is read by some Computations."""
    return any(o.tensor in c.inputs for o in after.outputs for c in by)


def _divided(c: Computation) -> tuple[Dim, int] | None:
    """The dimension of the groups, and how many of its points are one group."""
    value = c.outputs[0].value
    found = {
        (n.lhs, int(n.rhs.value.real))
        for n in postorder(value)
        if isinstance(n, FloorDiv) and isinstance(n.rhs, Const)
    }
    if len(found) != 1:
        return None
    ((v, size),) = found
    along = next((d for d in c.parallel_dims if d.var is v), None)
    if along is None or size < 2 or along.extent % size:
        return None
    return (along, size) if 1 < along.extent // size <= GROUPS else None


def _own(after: Computation, tensor: Buffer, axis: int) -> Dim | None:
    """The dimension of a map with which it reads an axis of a tensor."""
    found = {a.index[axis] for a in after.accesses if a.buffer is tensor}
    own = [d for d in after.dims if d.var in found]
    return own[0] if len(found) == len(own) == 1 else None


def _points(
    c: Computation,
    along: Dim,
    first: int,
    size: int,
    parts: Mapping[Buffer, tuple[Buffer, int]] = MappingProxyType({}),
) -> Computation:
    """`size` points of a dimension, from `first` on. parts: for a tensor, the buffer that holds
    just these along an axis."""
    dims = tuple(replace(d, size=size) if d is along else d for d in c.dims)
    ranges = environment(dims)
    moved = along.var + first if first else along.var

    def part(load: Load) -> Expr:
        buffer, axis = parts[load.buffer]
        index = list(load.index)
        index[axis] = along.var
        return Load(buffer, tuple(index))

    def one(e: Expr) -> Expr:
        there: Expr = substitute(e, {along.var: moved})
        return simplify(map_loads(there, dict.fromkeys(parts, part)), ranges)

    return replace(c, dims=dims, outputs=map_outputs(c, one))
