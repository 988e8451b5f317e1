"""Reductions into separate tensors, and copies from these into the final ones.

A schedule keeps the result of a reduction in the fastest form: in registers, in another order,
padded to whole tiles, and may initialize and copy it as a whole. It may do so only with a tensor
that no other Computation writes and that the reduction fills. A group may write less: a part of a
concatenation, the inside of a halo, every other element.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from tilewright.compute.nodes import CC, Computation, Dim, Output
from tilewright.compute.transforms import identity_dims
from tilewright.expr.nodes import Buffer, Load


def local_results(group: Sequence[Computation]) -> tuple[Computation, ...]:
    """The group with reductions and scans into parts of tensors split off, plus copies.

    Each result of a reduction then has one axis per dimension that is kept, in some order, and is
    written whole, by the reduction alone. What follows in the group reads the copy.
    """
    shared = written_often(group)
    return tuple(part for c in group for part in _parts(c, shared))


def owns_results(
    c: Computation,
    shared: frozenset[Buffer] = frozenset(),
) -> bool:
    """Whether each result has one dimension per axis, fills its tensor, and is written only by `c`.

    shared: tensors that others write too. That is, for each output o, where d1 .. dn are the
    dimensions of `c` that are not reduced (those of extent 1 may be missing):

        o.index is a permutation of (d1 .. dn), and extent(di) = the extent of its axis
        no Computation but `c`, and no other output of it, writes o.tensor
    """
    kept = {d for d in c.kept_dims if d.extent != 1}
    for o in c.outputs:
        axes = identity_dims(replace(c, outputs=(o,)))
        if axes is None or not kept <= set(axes) or o.tensor in shared:
            return False
    tensors = {o.tensor for o in c.outputs}
    return len(tensors) == len(c.outputs)


def written_often(group: Sequence[Computation]) -> frozenset[Buffer]:
    """Tensors that several Computations write."""
    writers: Counter[Buffer] = Counter()
    for c in group:
        writers.update({o.tensor for o in c.outputs})
    return frozenset(t for t, count in writers.items() if count > 1)


def _parts(
    c: Computation,
    shared: frozenset[Buffer],
) -> Iterator[Computation]:
    if c.is_map or owns_results(c, shared):
        yield c
        return
    kept = c.kept_dims
    shape = tuple(d.extent for d in kept)
    point = tuple(d.var for d in kept)
    reduced = []
    copied = []
    for o in c.outputs:
        local = Buffer(f"{o.tensor.name}_part", shape, o.tensor.dtype)
        reduced.append(Output(local, point, o.value))
        copied.append(Output(o.tensor, o.index, Load(local, point)))
    yield replace(c, outputs=tuple(reduced))
    dims = tuple(Dim(d.var, d.extent, CC) for d in kept)
    yield Computation(f"{c.name}_copy", dims, tuple(copied))
