"""What layers of models are made of, as Lift terms on nested arrays.

What only moves data (a transposition, the windows of a convolution) is no work for the machine: it
says where operands are read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.notation.lift.patterns import SCOPE, At, Fill, Map, Pad, Reduce, Slide, Split, let

Term = Any
Shape = Sequence[int]
Join, Transpose, Zip = SCOPE["Join"], SCOPE["Transpose"], SCOPE["Zip"]
add, sub, mul, div = (SCOPE[name] for name in ("add", "sub", "mul", "div"))
relu, tanh, sigmoid, exp = (SCOPE[name] for name in ("relu", "tanh", "sigmoid", "exp"))
maximum, inf = SCOPE["max"], SCOPE["inf"]


# -- whatever the rank


def at_depth(x: Term, depth: int, f: Callable[[Term], Term]) -> Term:
    """`f` on every part of an array that is so deep in it."""
    return f(x) if depth == 0 else x | Map(lambda part: at_depth(part, depth - 1, f))


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
    return matrix | Map(lambda row: Zip(row, vector) | Map(mul) | Reduce(add, 0.0)) | Join


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


def windows(x: Term, kernel: Shape, strides: Shape, pads: Shape, shape: Shape) -> Term:
    """[places, channels * rows * columns] of an image [channels, rows, columns] of this shape."""
    channels, _, width = shape
    top, left, bottom, right = pads
    rows = transpose(x, (1, 2, 0))
    if any(pads):
        point = Fill(0.0, channels)
        wide = rows | Map(Pad(left, right, point))
        rows = wide | Pad(top, bottom, Fill(point, left + width + right))
    rows = rows | Slide(kernel[0], strides[0])
    found = rows | Map(lambda band: transpose(at_depth(band, 1, _slide(kernel, strides)), (1, 0)))
    flat = lambda w: transpose(w, (2, 0, 1)) | Join | Join  # noqa: E731
    return found | Join | Map(flat)


def _slide(kernel: Shape, strides: Shape) -> Callable[[Term], Term]:
    return lambda row: row | Slide(kernel[1], strides[1])


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
