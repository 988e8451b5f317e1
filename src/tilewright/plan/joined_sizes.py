"""Two sizes as one: a map over all rows of all sequences of a batch is a map over rows.

Kernels of some units or positions at a time then have one rest, instead of one per sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from tilewright.compute.nodes import Computation, Dim, Output
from tilewright.compute.transforms import map_loads
from tilewright.expr.nodes import INDEX, Buffer, Expr, Load, as_expr
from tilewright.ir.node import postorder, substitute

Pair = tuple[Expr, Expr]  # extents of neighboring axes
Views = Mapping[Buffer, Buffer]
Index = tuple[Expr, ...]


def join_sizes(group: Sequence[Computation]) -> tuple[tuple[Computation, ...], Views]:
    """The group with joined sizes, and its view of each tensor that changed shape.

    Two neighboring axes of extents m and n are one of m * n, and so are the dimensions i of m and
    j of n points, if in the whole group

        a tensor with these axes is indexed by i and j at the first of them, each a variable of its
        own of a dimension whose results are concatenated (cc)
        i and j occur nowhere else

    The element i * n + j of the view is the element i, j of the tensor.
    """
    views: dict[Buffer, Buffer] = {}
    current = tuple(group)
    while (found := next(_joinable(current), None)) is not None:
        current, own = _joined(current, *found)
        views = {b: own.pop(v, v) for b, v in views.items()}
        views |= own
    return current, views


# The tensors of a pair with the first of its axes, and the dimensions of each Computation.
Axes = Mapping[Buffer, int]
Dims = Mapping[Computation, tuple[Dim, Dim]]


def _joinable(group: Sequence[Computation]) -> Iterator[tuple[Axes, Dims]]:
    found: dict[Pair, dict[Buffer, int]] = {}
    for c in group:
        for b, _ in _accesses(c):
            for axis, (m, n) in enumerate(pairwise(b.extents)):
                if isinstance(m, int) or isinstance(n, int):
                    continue
                axes = found.setdefault((m, n), {})
                axes.setdefault(b, axis)
    for pair, axes in found.items():
        dims = _all_dims(group, axes, pair)
        if dims is not None:
            yield axes, dims


def _all_dims(group: Sequence[Computation], axes: Axes, pair: Pair) -> Dims | None:
    """The dimensions of all Computations on such tensors; None if one is not as required."""
    found = {}
    for c in group:
        if not any(b in axes for b, _ in _accesses(c)):
            continue
        dims = _dims(c, axes, pair)
        if dims is None:
            return None
        found[c] = dims
    return found


def _dims(c: Computation, axes: Axes, pair: Pair) -> tuple[Dim, Dim] | None:
    """The two dimensions, if they index the tensors as required and occur nowhere else."""
    arguments, values = c.function
    read = dict(zip(c.accesses, arguments, strict=True))
    found: set[Index] = set()
    rest = list(values)
    for b, whole in _accesses(c):
        index = tuple(substitute(i, read) for i in whole)
        if b in axes:
            axis = axes[b]
            both = index[axis : axis + 2]
            found.add(both)
            rest += index[:axis]
            index = index[axis + 2 :]
        rest += index
    if len(found) != 1:
        return None
    both = found.pop()
    first, second = both
    if first is second:
        return None
    for e in rest:
        if any(node in both for node in postorder(e)):
            return None
    of: dict[Expr, Dim] = {d.var: d for d in c.parallel_dims}
    if not of.keys() >= {first, second}:
        return None
    dims = of[first], of[second]
    sizes = tuple(d.size for d in dims)
    if sizes != pair:
        return None
    return dims


def _accesses(c: Computation) -> Iterator[tuple[Buffer, Index]]:
    for o in c.outputs:
        yield o.tensor, o.index
    for load in c.accesses:
        yield load.buffer, load.index


def _joined(
    group: Sequence[Computation], axes: Axes, dims: Dims
) -> tuple[tuple[Computation, ...], dict[Buffer, Buffer]]:
    views = {b: _view(b, axis) for b, axis in axes.items()}
    found = []
    for c in group:
        if c in dims:
            first, second = dims[c]
            over = _OverBoth(axes, views, first, second)
            c = over.computation(c)
        found.append(c)
    return tuple(found), views


def _view(b: Buffer, axis: int) -> Buffer:
    before = b.extents[:axis]
    behind = b.extents[axis + 2 :]
    m, n = b.extents[axis : axis + 2]
    both = as_expr(m, INDEX) * as_expr(n, INDEX)
    return Buffer(b.name, (*before, both, *behind), b.dtype, b.scope)


class _OverBoth:
    """Moves a Computation onto the views, with one dimension for two."""

    def __init__(self, axes: Axes, views: Views, first: Dim, second: Dim) -> None:
        self._axes = axes
        self._views = views
        self._first = first
        self._second = second
        size = as_expr(first.size, INDEX) * as_expr(second.size, INDEX)
        self._both = replace(first, size=size)

    def computation(self, c: Computation) -> Computation:
        """The moved Computation."""
        dims = []
        for d in c.dims:
            if d is self._first:
                dims.append(self._both)
            elif d is not self._second:
                dims.append(d)
        outputs = tuple(map(self._output, c.outputs))
        return replace(c, dims=tuple(dims), outputs=outputs)

    def _output(self, o: Output) -> Output:
        moves = dict.fromkeys(self._axes, self._load)
        value = map_loads(o.value, moves)
        index = self._place(o.tensor, o.index)
        return Output(self._views.get(o.tensor, o.tensor), index, value)

    def _load(self, load: Load) -> Expr:
        index = self._place(load.buffer, load.index)
        return Load(self._views[load.buffer], index)

    def _place(self, b: Buffer, index: Index) -> Index:
        axis = self._axes.get(b)
        if axis is None:
            return index
        before = index[:axis]
        behind = index[axis + 2 :]
        return (*before, self._both.var, *behind)
