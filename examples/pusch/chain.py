"""The receiver's four steps as tensor expressions: estimate, factorize, detect, demap.

Complex arrays are pairs of real ones, (2, ...). Subcarriers come in blocks of as many as a vector
has lanes: the blocks are the first dimension of an array (after the pair), the lanes the last, so
that every subcarrier has its own lane, and what a block needs lies in one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

from linear import Method, Pair
from modulation import axis
from slot import Layout

from tilewright import te as t
from tilewright.base.flags import MCPU
from tilewright.operators import minimum
from tilewright.targets.registry import target

LANES = 16 if "avx512f" in target("cpu", MCPU.get()).requirements["features"] else 8
Tensors = Sequence[t.Tensor]

sum_of_pairs = t.comm_reducer(
    lambda a, b: (a[0] + b[0], a[1] + b[1]), lambda a, b: (t.const(0, a), t.const(0, b))
)


def blocks(layout: Layout) -> int:
    """How many blocks the subcarriers are, the last of them perhaps not full."""
    return -(-layout.subcarriers // LANES)


def at(tensor: t.Tensor, *index: Any) -> Pair:
    """A complex element of a tensor of pairs."""
    return Pair(tensor[(0, *index)], tensor[(1, *index)])


def names(name: str, count: int) -> list[str]:
    """Of the tensors of one Computation."""
    return [f"{name}{n}" for n in range(count)]


def stacked(parts: Tensors, name: str, shape: Sequence[int] = ()) -> t.Tensor:
    """Tensors (blocks, ..., lanes) as one, their number (of this shape) before the lanes.

    A function of a few arrays is called sooner than one of a hundred, and what belongs to a block
    lies in one place. Unrolled, no choice remains.
    """
    shape = tuple(shape) or (len(parts),)
    *outer, lanes = parts[0].shape

    def value(*index: Any) -> Any:
        place, s = index[: len(outer)], index[-1]
        number: Any = 0
        for i, extent in zip(index[len(outer) : -1], shape, strict=True):
            number = number * extent + i
        found = parts[-1][(*place, s)]
        for n, part in reversed(list(enumerate(parts[:-1]))):
            found = t.if_then_else(number < n + 1, part[(*place, s)], found)
        return found

    return t.compute((*outer, *shape, lanes), value, name=name)


# -------------------------------------------------------------------------------------- estimation


def least_squares(
    layout: Layout, y: t.Tensor, pilots: t.Tensor, sign: t.Tensor
) -> Tensors:
    """What layers have at their pairs of reference symbols: (antennas, layers, subcarriers / 4)."""
    symbol = t.reduce_axis((0, layout.pilots), "symbol")
    neighbor = t.reduce_axis((0, 2), "neighbor")

    def value(m: Any, k: Any, group: Any) -> Any:
        place = group * 4 + neighbor * 2 + k // 2 % 2
        sent = at(pilots, symbol, place)
        arrived = at(y, place // LANES, symbol, m, place % LANES)
        term = sent.inner(arrived).scaled(sign[k, symbol, neighbor])
        return sum_of_pairs(term, axis=(symbol, neighbor))

    shape = (layout.antennas, layout.layers, layout.subcarriers // 4)
    return t.compute(shape, value, name=names("pairs", 2))


def interpolate(layout: Layout, pairs: Tensors) -> Tensors:
    """Linear between the pairs, and constant outside: (blocks, antennas, layers, lanes)."""
    last = layout.subcarriers // 4 - 1

    def inside(group: Any) -> Any:
        return t.if_then_else(group < 0, 0, t.if_then_else(group > last, last, group))

    def value(b: Any, m: Any, k: Any, s: Any) -> tuple[Any, ...]:
        shifted = (
            b * LANES + s + (3 - k // 2 % 2)
        )  # the pair of group g is at 4 g + 1 + comb
        above = shifted // 4
        part = (shifted % 4).astype("float32") * 0.25
        return tuple(
            p[m, k, inside(above - 1)] * (1.0 - part) + p[m, k, inside(above)] * part
            for p in pairs
        )

    shape = (blocks(layout), layout.antennas, layout.layers, LANES)
    return t.compute(shape, value, name=names("h", 2))


# --------------------------------------------------------------------------------------- detection


def gram(layout: Layout, h: t.Tensor) -> list[Tensors]:
    """Row i of HᴴH as far as the diagonal, for each layer i: (blocks, i + 1, lanes)."""

    def row(i: int) -> Tensors:
        m = t.reduce_axis((0, layout.antennas), "m")

        def value(b: Any, j: Any, s: Any) -> Any:
            return sum_of_pairs(at(h, b, m, i, s).inner(at(h, b, m, j, s)), axis=m)

        return t.compute(
            (blocks(layout), i + 1, LANES), value, name=names(f"gram{i}_", 2)
        )

    return [row(i) for i in range(layout.layers)]


def factorize(
    layout: Layout, method: Method, rows: list[Tensors], noise: t.Tensor
) -> Tensors:
    """A factorization of HᴴH + noise I, and what unbiases its solutions: (blocks, lanes) each.

    In order: inverses of the diagonal, entries (real and imaginary parts), gains, error variances.
    """
    k = layout.layers

    def value(b: Any, s: Any) -> tuple[Any, ...]:
        a = {
            (i, j): Pair(*(p[b, j, s] for p in rows[i]))
            for i in range(k)
            for j in range(i + 1)
        }
        a |= {(i, i): Pair(a[i, i].re + noise[0], a[i, i].im) for i in range(k)}
        entries, inverse = method.factor(a, k)
        stored = [part for place in method.stored(k) for part in entries[place]]
        shrunk = [
            method.inverse(entries, inverse, layer) * noise[0] for layer in range(k)
        ]
        gains = [1.0 / (1.0 - d) for d in shrunk]
        variances = [d * gain for d, gain in zip(shrunk, gains, strict=True)]
        return (*inverse, *stored, *gains, *variances)

    shape = (blocks(layout), LANES)
    return t.compute(shape, value, name=names("factor", rows_of(layout, method)))


def rows_of(layout: Layout, method: Method) -> int:
    """How many values a subcarrier's factorization has."""
    return 3 * layout.layers + 2 * len(method.stored(layout.layers))


def matched(layout: Layout, h: t.Tensor, y: t.Tensor) -> Tensors:
    """Hᴴy for each data symbol: (blocks, layers, data symbols, lanes)."""
    m = t.reduce_axis((0, layout.antennas), "m")

    def value(b: Any, k: Any, symbol: Any, s: Any) -> Any:
        arrived = at(y, b, symbol + layout.pilots, m, s)
        return sum_of_pairs(at(h, b, m, k, s).inner(arrived), axis=m)

    shape = (blocks(layout), layout.layers, layout.data, LANES)
    return t.compute(shape, value, name=names("matched", 2))


def solve(
    layout: Layout, method: Method, matched: Tensors, factors: t.Tensor
) -> Tensors:
    """Symbols of each layer in turn, real and imaginary parts: (blocks, data symbols, lanes)."""
    k, places = layout.layers, method.stored(layout.layers)

    def value(b: Any, symbol: Any, s: Any) -> tuple[Any, ...]:
        row = [factors[b, n, s] for n in range(2 * k + 2 * len(places))]
        inverse, stored, gains = row[:k], row[k:-k], row[-k:]
        entries = {p: Pair(*stored[2 * n : 2 * n + 2]) for n, p in enumerate(places)}
        right = [Pair(*(part[b, n, symbol, s] for part in matched)) for n in range(k)]
        x = method.solve(entries, inverse, right)
        return tuple(part for n in range(k) for part in x[n].scaled(gains[n]))

    return t.compute(
        (blocks(layout), layout.data, LANES), value, name=names("x", 2 * k)
    )


# ---------------------------------------------------------------------------------- soft decisions


def demap(layout: Layout, x: t.Tensor, variance: t.Tensor) -> Tensors:
    """Max-log ratios log P(0)/P(1) of each bit: (blocks, layers, data symbols, lanes)."""
    labels = axis(layout.modulation)

    def nearest(distances: list[Any], bit: int, value: int) -> Any:
        chosen = [
            d
            for d, (bits, _) in zip(distances, labels, strict=True)
            if bits[bit] == value
        ]
        return reduce(minimum, chosen)

    def value(b: Any, k: Any, symbol: Any, s: Any) -> tuple[Any, ...]:
        scale = 1.0 / variance[b, k, s]
        parts = [x[b, symbol, k, part, s] for part in range(2)]
        distances = [[(p - level) * (p - level) for _, level in labels] for p in parts]
        return tuple(
            (nearest(d, bit, 1) - nearest(d, bit, 0)) * scale
            for bit in range(len(labels[0][0]))
            for d in distances
        )

    shape = (blocks(layout), layout.layers, layout.data, LANES)
    return t.compute(shape, value, name=names("ratio", layout.bits))
