"""Pieces of random graphs about extents: symbols instead of numbers, and shapes that are computed.

A graph with a symbolic extent runs at several sizes, and its computed shapes are only known at a
call.
"""

from __future__ import annotations

import math

import numpy as np

from tilewright.graph.nodes import Value
from tilewright.testing.graph_ops import Piece
from tilewright.testing.graphs import MAX_ELEMENTS, OperatorRejected, RandomGraphBuilder


def free_extent(b: RandomGraphBuilder) -> None:
    """An extent of some input is a symbol: there, and in most others that are as long."""
    extents = {e for v in b.inputs for e in v.extents if e > 1}
    extents -= b.free
    if not extents or b.depth or len(b.free) > 1:
        raise OperatorRejected
    extent = b.rng.choice(sorted(extents))
    b.free.add(extent)


def reshaped(b: RandomGraphBuilder) -> None:
    """Axes kept and joined as the tensor's own shape says."""
    x = b.pick(lambda v: len(v.extents) > 1 and 0 not in v.extents)
    kept = b.rng.randint(1, len(x.extents) - 1)
    shape = b.op("Shape", x)
    first = _part(b, shape, 0, kept)
    rest = [b.ints(-1)]
    if b.chance(0.4):
        place = b.rng.randint(0, 1)
        rest.insert(place, b.ints(1))
    shape = b.op("Concat", first, *rest, axis=0)
    b.op("Reshape", x, shape)


def exchanged(b: RandomGraphBuilder) -> None:
    """[A, B, ...] to [A, C, B / C, ...], transposed: heads of an attention."""
    x = b.pick(lambda v: len(v.extents) == 3 and 0 not in v.extents)
    width = x.extents[2]
    divisors = [n for n in (1, 2, 3, 4) if width % n == 0]
    count = b.rng.choice(divisors)
    shape = b.op("Shape", x)
    lengths = _part(b, shape, 0, 2)
    heads = b.ints(count, width // count)
    shape = b.op("Concat", lengths, heads, axis=0)
    split = b.op("Reshape", x, shape)
    b.op("Transpose", split, perm=[0, 2, 1, 3])


def expanded(b: RandomGraphBuilder) -> None:
    """One tensor as large as another."""
    x = b.pick(lambda v: 0 < len(v.extents) < 5)
    shape = [e if b.chance(0.5) else 1 for e in x.extents]
    first = b.rng.randint(0, len(shape) - 1)
    small = b.leaf(shape[first:], x.dtype)
    large = b.op("Shape", x)
    b.op("Expand", small, large)


def filled(b: RandomGraphBuilder) -> None:
    """A constant as large as a tensor, added to it."""
    x = b.pick(lambda v: v.dtype is not None and v.dtype.is_float)
    assert x.dtype is not None
    value = np.array([b.one_of(0, 0.5, 2)], x.dtype.numpy)
    shape = b.op("Shape", x)
    constant = b.op("ConstantOfShape", shape, value=value)
    b.op("Add", x, constant)


def positions(b: RandomGraphBuilder) -> None:
    """The numbers of the places along an axis, added: positions of an embedding."""
    x = b.pick(
        lambda v: len(v.extents) > 0 and v.dtype is not None and v.dtype.is_float
    )
    too_large = math.prod(x.extents) > MAX_ELEMENTS
    if too_large or x.extents[-1] > 100:
        raise OperatorRejected
    assert x.dtype is not None
    shape = b.op("Shape", x)
    indices = b.given(np.array(-1))
    length = b.op("Gather", shape, indices, axis=0)
    start = b.given(np.array(0))
    step = b.given(np.array(1))
    places = b.op("Range", start, length, step)
    like = b.op("CastLike", places, x)
    b.op("Add", x, like)


def _part(
    b: RandomGraphBuilder,
    shape: Value,
    start: int,
    end: int,
) -> Value:
    starts = b.ints(start)
    ends = b.ints(end)
    return b.op("Slice", shape, starts, ends)


SHAPES: dict[str, tuple[Piece, float]] = {
    f.__name__: (f, weight)
    for f, weight in (
        (free_extent, 1.0),
        (reshaped, 1),
        (exchanged, 1),
        (expanded, 0.7),
        (filled, 0.4),
        (positions, 0.5),
    )
}
