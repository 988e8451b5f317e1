"""Two sizes as one: a map over all rows of all sequences of a batch is a map over rows.

Kernels of some units or positions at a time then have one rest, instead of one per sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from tilewright.compute.nodes import CC, Computation, Dim, Output
from tilewright.compute.transforms import map_loads
from tilewright.expr.nodes import INDEX, Buffer, Expr, Load, Var, as_expr
from tilewright.ir.node import postorder, substitute

Pair = tuple[Expr, Expr]  # extents of neighboring axes
Views = Mapping[Buffer, Buffer]
Index = tuple[Expr, ...]


def join_sizes(group: Sequence[Computation]) -> tuple[tuple[Computation, ...], Views]:
    """The group with joined sizes, and its view of each tensor that changed shape.

    Two neighboring axes of extents m and n are one of m * n, and so are the dimensions i of m and
    j of n points, if in the whole group

        a tensor with these axes has no other axis of m or n, and is indexed by i and j there, each
        a variable of its own of a dimension whose results are concatenated (cc)
        i and j occur nowhere else

    The element i * n + j of the view is the element i, j of the tensor.
    """
    views: dict[Buffer, Buffer] = {}
    current = tuple(group)
    while (found := next(_joinable(current), None)) is not None:
        current, own = _joined(current, *found)
        views = {b: own.pop(v, v) for b, v in views.items()} | own
    return current, views


# The tensors of a pair with the first of its axes, and the dimensions of each Computation.
Axes = Mapping[Buffer, int]
Dims = Mapping[Computation, tuple[Dim, Dim]]


def _joinable(group: Sequence[Computation]) -> Iterator[tuple[Axes, Dims]]:
    tensors = dict.fromkeys(b for c in group for b in _tensors(c))
    pairs = dict.fromkeys(pair for b in tensors for pair in _pairs(b))
    for pair in pairs:
        axes = {b: _axis(b, pair) for b in tensors if pair in _pairs(b)}
        dims = {c: _dims(c, axes, pair) for c in group if axes.keys() & _tensors(c)}
        if None not in axes.values() and None not in dims.values():
            yield (
                {b: axis for b, axis in axes.items() if axis is not None},
                {c: both for c, both in dims.items() if both is not None},
            )


def _tensors(c: Computation) -> dict[Buffer, None]:
    return dict.fromkeys((*c.inputs, *(o.tensor for o in c.outputs)))


def _pairs(b: Buffer) -> list[Pair]:
    """Extents of neighboring axes, both of which sizes change."""
    neighbors = pairwise(b.extents)
    return [(m, n) for m, n in neighbors if isinstance(m, Expr) and isinstance(n, Expr)]


def _axis(b: Buffer, pair: Pair) -> int | None:
    """The first of the axes; None if another one has such an extent, too."""
    places = [n for n, e in enumerate(b.extents) if e in pair]
    return places[0] if len(places) == 2 else None


def _dims(
    c: Computation, axes: Mapping[Buffer, int | None], pair: Pair
) -> tuple[Dim, Dim] | None:
    """The two dimensions, if they index the tensors as required and occur nowhere else."""
    arguments, values = c.function
    read = dict(zip(c.accesses, arguments, strict=True))
    found: set[Index] = set()
    rest = list(values)
    for b, whole in _accesses(c):
        index = tuple(substitute(i, read) for i in whole)
        axis = axes.get(b)
        if axis is None:
            rest += index
        else:
            found.add(index[axis : axis + 2])
            rest += (*index[:axis], *index[axis + 2 :])
    by_var = {d.var: d for d in c.dims if d.combine == CC}
    both = [by_var.get(i) for index in found for i in index if isinstance(i, Var)]
    match both:
        case [Dim() as first, Dim() as second] if first is not second:
            names = {first.var, second.var}
        case _:
            return None
    used = any(node in names for e in rest for node in postorder(e))
    same = (first.size, second.size) == pair
    return (first, second) if same and not used else None


def _accesses(c: Computation) -> Iterator[tuple[Buffer, Index]]:
    for o in c.outputs:
        yield o.tensor, o.index
    for load in c.accesses:
        yield load.buffer, load.index


def _joined(
    group: Sequence[Computation], axes: Axes, dims: Dims
) -> tuple[tuple[Computation, ...], dict[Buffer, Buffer]]:
    views = {}
    for b, axis in axes.items():
        m, n = (as_expr(e, INDEX) for e in b.extents[axis : axis + 2])
        extents = (*b.extents[:axis], m * n, *b.extents[axis + 2 :])
        views[b] = Buffer(b.name, extents, b.dtype, b.scope)
    found = []
    for c in group:
        found.append(_over_both(c, axes, views, *dims[c]) if c in dims else c)
    return tuple(found), views


def _over_both(
    c: Computation, axes: Axes, views: Views, first: Dim, second: Dim
) -> Computation:
    size = as_expr(first.size, INDEX) * as_expr(second.size, INDEX)
    both = replace(first, var=Var(first.var.name, first.var.dtype), size=size)

    def place(b: Buffer, index: Index) -> Index:
        if b not in axes:
            return index
        axis = axes[b]
        return (*index[:axis], both.var, *index[axis + 2 :])

    def moved(load: Load) -> Expr:
        return Load(views[load.buffer], place(load.buffer, load.index))

    outputs = tuple(
        Output(
            views.get(o.tensor, o.tensor),
            place(o.tensor, o.index),
            map_loads(o.value, dict.fromkeys(axes, moved)),
        )
        for o in c.outputs
    )
    dims = tuple(both if d is first else d for d in c.dims if d is not second)
    return replace(c, dims=dims, outputs=outputs)
