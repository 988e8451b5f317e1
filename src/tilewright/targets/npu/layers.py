"""The building blocks of layers, as Lift terms on nested arrays.

What only moves data (a transposition, the windows of a convolution) is not work for the machine: it
says where operands are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product as product_of
from typing import Any

from tilewright.graph.ops.windows import Windows
from tilewright.lift.patterns import (
    SCOPE,
    At,
    Fill,
    Map,
    Pad,
    Reduce,
    Slide,
    Split,
    let,
)

Term = Any
Shape = Sequence[int]
Join, Transpose, Zip = SCOPE["Join"], SCOPE["Transpose"], SCOPE["Zip"]
add, sub, mul, div = (SCOPE[name] for name in ("add", "sub", "mul", "div"))
relu, tanh, sigmoid, exp = (SCOPE[name] for name in ("relu", "tanh", "sigmoid", "exp"))
maximum, inf = SCOPE["max"], SCOPE["inf"]


# -- whatever the rank


def at_depth(x: Term, depth: int, f: Callable[[Term], Term]) -> Term:
    """`f` on every part of an array that is so deep in it."""
    if depth == 0:
        return f(x)
    return x | Map(lambda part: at_depth(part, depth - 1, f))


def pointwise(x: Term, shape: Shape, f: Any) -> Term:
    """A scalar function on every element."""
    return at_depth(x, len(shape) - 1, lambda v: v | Map(f))


def broadcast(f: Any, a: Term, b: Term, of: Shape, with_: Shape) -> Term:
    """A scalar function of two arrays, as NumPy broadcasts them; of, with_: their shapes."""
    if not of and not with_:
        return f(a, b)
    if len(with_) < len(of):
        return a | Map(lambda part: broadcast(f, part, b, of[1:], with_))
    if len(of) < len(with_):
        return b | Map(lambda part: broadcast(f, a, part, of, with_[1:]))
    if of[0] == with_[0]:
        if len(of) == 1:
            return Zip(a, b) | Map(f)
        return Zip(a, b) | Map(lambda s, t: broadcast(f, s, t, of[1:], with_[1:]))
    if with_[0] == 1:
        return broadcast(f, a, b | At(0), of, with_[1:])
    return broadcast(f, a | At(0), b, of[1:], with_)


def reshape(x: Term, before: Shape, after: Shape) -> Term:
    """The same elements in another shape, which has as many."""
    for _ in before[1:]:
        x = x | Join
    for extent in reversed(after[1:]):
        x = x | Split(extent)
    return x


def transpose(x: Term, axes: Sequence[int]) -> Term:
    """The axes in another order."""
    now = list(range(len(axes)))
    for place, axis in enumerate(axes):
        for i in range(now.index(axis), place, -1):
            now[i - 1], now[i] = now[i], now[i - 1]
            x = at_depth(x, i - 1, lambda part: part | Transpose)
    return x


# -- what layers are made of


def product(matrix: Term, vector: Term) -> Term:
    """A matrix times a vector."""
    return (
        matrix | Map(lambda row: Zip(row, vector) | Map(mul) | Reduce(add, 0.0)) | Join
    )


def matmul(a: Term, b: Term, of: Shape, with_: Shape) -> Term:
    """The product of two arrays as NumPy has it, not of two vectors; of, with_: their shapes."""
    ranks = len(of), len(with_)
    if ranks == (2, 1):
        return product(a, b)
    if ranks == (1, 2):
        return product(b | Transpose, a)
    if ranks == (2, 2) or ranks[0] > ranks[1]:
        return a | Map(lambda part: matmul(part, b, of[1:], with_))
    if ranks[0] < ranks[1]:
        return b | Map(lambda part: matmul(a, part, of, with_[1:]))
    if of[0] == with_[0]:
        return Zip(a, b) | Map(lambda s, t: matmul(s, t, of[1:], with_[1:]))
    if with_[0] == 1:
        return matmul(a, b | At(0), of, with_[1:])
    return matmul(a | At(0), b, of[1:], with_)


def windows(x: Term, channels: int, of: Windows) -> Term:
    """[places, channels * rows * columns] of an image [channels, rows, columns]."""
    rows = transpose(x, (1, 2, 0))
    bands = _slide(_padded(rows, of, Fill(0.0, channels)), of, 0)
    places = bands | Map(
        lambda band: band | Map(lambda row: _slide(row, of, 1)) | Transpose
    )
    return places | Join | Map(lambda w: transpose(w, (2, 0, 1)) | Join | Join)


def pooled(x: Term, of: Windows, f: Any, outside: Any) -> Term:
    """A function of two numbers over the windows of every channel, with `outside` around them."""

    def at(offset: Sequence[int]) -> Term:
        """The numbers of all windows at one offset, as a vector."""

        def plane(rows: Term) -> Term:
            bands = _slide(_padded(rows, of, outside), of, 0) | Map(At(offset[0]))
            return (
                bands | Map(lambda row: _slide(row, of, 1) | Map(At(offset[1]))) | Join
            )

        return x | Map(plane) | Join

    first, *others = map(at, product_of(*map(range, of.kernel)))
    for other in others:
        first = Zip(first, other) | Map(f)
    return first | Split(of.outputs[1]) | Split(of.outputs[0])


def _padded(rows: Term, of: Windows, point: Any) -> Term:
    """Rows with points around."""
    (top, left), (bottom, right) = of.begin, of.end
    if not any((*of.begin, *of.end)):
        return rows
    wide = rows | Map(Pad(left, right, point))
    return wide | Pad(top, bottom, Fill(point, left + of.inputs[1] + right))


def _slide(x: Term, of: Windows, axis: int) -> Term:
    """The windows along one axis, points between those that they have left out."""
    step = of.dilations[axis]
    found = x | Slide((of.kernel[axis] - 1) * step + 1, of.strides[axis])
    if step == 1:
        return found
    return found | Map(lambda w: w | Slide(1, step) | Map(At(0)))


def softmax(scores: Term) -> Term:
    """Of a vector."""

    def weigh(v: Term) -> Term:
        top = v | Reduce(maximum, -inf) | At(0)
        return v | Map(lambda e: sub(e, top)) | Map(exp)

    def share(weights: Term) -> Term:
        part = weights | Reduce(add, 0.0) | Map(lambda total: div(1.0, total)) | At(0)
        return weights | Map(lambda e: mul(e, part))

    return let(let(scores, weigh), share)


def plus(*vectors: Term) -> Term:
    """Their sum."""
    total, *rest = vectors
    for v in rest:
        total = Zip(total, v) | Map(add)
    return total


def times(a: Term, b: Term) -> Term:
    """Element by element."""
    return Zip(a, b) | Map(mul)
