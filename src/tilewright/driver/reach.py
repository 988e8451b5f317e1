"""Which elements of its results a kernel may access.

A result may be the interior of a halo, a part of a concatenation, or one of several interleaved
phases: the rest of its memory exists, but belongs to other kernels. Inputs may be read everywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce

from tilewright.compute.nodes import Computation
from tilewright.compute.transforms import environment
from tilewright.expr.affine import affine
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import Buffer, Expr, Var
from tilewright.targets.permitted import IndexSet, Permitted

Spans = tuple[IndexSet, ...]


def reach(
    group: Sequence[Computation], outputs: Collection[Buffer]
) -> dict[Buffer, Permitted]:
    """The elements of each output that a kernel of the group may load and store.

    Stores: for each axis by itself, the indices that the Computations write. The set is exact for
    an affine index whose terms do not overlap. Several different indices get the smallest set with
    one common step, and an index that is not affine gets all values between its bounds. Loads: the
    whole interval from the least to the greatest index that is written or read.
    """
    written: dict[Buffer, list[Spans]] = {}
    touched: dict[Buffer, list[Spans]] = {}
    for c in group:
        env = environment(c.dims)
        for o in c.outputs:
            written.setdefault(o.tensor, []).append(_spans(o.tensor, o.index, env))
        for a in c.accesses:
            touched.setdefault(a.buffer, []).append(_spans(a.buffer, a.index, env))
    found = {}
    for b in outputs:
        if b in written:
            stores = _around(written[b])
            loads = _around([*written[b], *touched.get(b, ())])
            found[b] = Permitted(tuple(s.filled for s in loads), stores)
    return found


def _spans(
    b: Buffer, index: Sequence[Expr], env: Mapping[Var, tuple[int, int]]
) -> Spans:
    return tuple(_span(i, n, env) for i, n in zip(index, b.shape, strict=True))


def _span(index: Expr, extent: int, env: Mapping[Var, tuple[int, int]]) -> IndexSet:
    form = affine(index)
    if all(isinstance(a, Var) and a in env for a, _ in form.terms):
        ends = [(c, env[a][1]) for a, c in form.terms if isinstance(a, Var)]
        first = form.const + sum(c * last for c, last in ends if c < 0)
        found = IndexSet.over(first, [(abs(c), last + 1) for c, last in ends])
        if first >= 0 and found.last < extent:
            return found
    least, greatest = bounds(index, env)
    low = max(0, least or 0)
    high = extent - 1 if greatest is None else min(greatest, extent - 1)
    return IndexSet.over(low, [(1, high - low + 1)])


def _around(all_spans: Iterable[Spans]) -> Spans:
    return tuple(reduce(IndexSet.around, axis) for axis in zip(*all_spans, strict=True))
