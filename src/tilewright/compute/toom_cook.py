"""Minimal filtering by interpolation: the matrices of F(m, r), exact, for any m and r.

m results of a filter of r elements are the values that a product of polynomials takes, and that is
known from n = m + r - 1 points (Toom and Cook; Winograd, Arithmetic Complexity of Computations,
1980): n - 1 numbers p, and infinity, where a polynomial is its leading coefficient. With
N(p) = product over the other numbers q of (p - q), and M(x) = product over all q of (x - q):

    results  A^T (m x n)  the column of p holds p^0 .. p^(m-1)           of infinity: 0 .. 0 1
    filters  G   (n x r)  the row of p holds p^0 / N(p) .. p^(r-1) / N(p)  of infinity: 0 .. 0 1
    inputs   B^T (n x n)  the row of p holds M(x) / (x - p)'s coefficients of infinity: M(x)'s

and y = A^T [(G g) * (B^T d)]. Points come in pairs -p, p, because the rows of a pair then share
their sums over even and over odd powers, and their columns are used as sums and differences.

Large m saves multiplications and costs accuracy: the intermediate numbers grow and cancel. Zero
and +-1 are best for m = 2. For m = 4 the usual +-1 and +-2 let a result's terms grow 48 times per
axis, +-5/8 and +-3/2 24 times, with half the error that is measured (pairs near p and 1/p, as
Alam et al. find in Winograd Convolution for Deep Neural Networks: Efficient Point Selection,
2022; these have few bits, so that B^T and A^T are exact in float32).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from typing import Any, Final

from tilewright.base.dataclass import dataclass

Row = tuple[Fraction, ...]
Columns = tuple[tuple[int, ...], ...]
Part = Sequence[tuple[Fraction, int]]  # coefficients and columns

FLOAT32_BITS: Final = 24  # of a number's fraction

PAIRS: Final[Mapping[int, tuple[Fraction, ...]]] = {
    2: (Fraction(1),),
    4: (Fraction(5, 8), Fraction(3, 2)),
}  # by m, for windows of three: the positive points


@dataclass(frozen=True, slots=True)
class Matrix:
    """A transform. groups: a partition of the columns; rows share the groups' sums up to a factor.

    Each column is in exactly one group, since others would be ignored. No row is all zeros.
    """

    rows: tuple[Row, ...]
    groups: Columns

    def apply(
        self,
        terms: Sequence[Any],
        number: Callable[[Fraction], Any],
    ) -> list[Any]:
        """The matrix times a vector of numbers or expressions; `number` makes its constants.

        Terms that are zero are left out, and multiplications by one.
        """
        return [self._dot(row, terms, number) for row in self.rows]

    def square(
        self,
        terms: Sequence[Sequence[Any]],
        number: Callable[[Fraction], Any],
    ) -> Any:
        """`matrix terms matrix^T`, as a list of rows."""
        columns = [self.apply(column, number) for column in zip(*terms, strict=True)]
        return [self.apply(line, number) for line in zip(*columns, strict=True)]

    @property
    def operations(self) -> int:
        """Additions, with the multiplication before where there is one, and lone multiplications;
        what rows share is done once."""
        parts = [self._parts(row) for row in self.rows]
        shared = {tuple(part) for row in parts for _, part in row}
        joined = [[(factor, 0) for factor, _ in row] for row in parts]
        return sum(map(_operations, (*shared, *joined)))

    def _parts(self, row: Row) -> list[tuple[Fraction, Part]]:
        """The sums over groups, each with a factor, and the last element of each taken once, so
        that rows of a pair are alike."""
        found: list[tuple[Fraction, Part]] = []
        for group in self.groups:
            part = [(row[n], n) for n in group if row[n]]
            if part:
                last = part[-1][0]
                scaled = tuple((c / last, n) for c, n in part)
                found.append((last, scaled))
        return found

    def _dot(
        self,
        row: Row,
        terms: Sequence[Any],
        number: Callable[[Fraction], Any],
    ) -> Any:
        sums = []
        for factor, part in self._parts(row):
            inner = [(c, terms[n]) for c, n in part]
            sums.append((factor, _sum(inner, number)))
        return _sum(sums, number)


def _operations(pairs: Part) -> int:
    return len(pairs) - any(abs(c) == 1 for c, _ in pairs)


def _sum(
    pairs: Sequence[tuple[Fraction, Any]],
    number: Callable[[Fraction], Any],
) -> Any:
    """The sum of `c * t`, starting with a term that is neither subtracted nor multiplied, if there
    is one."""

    def plain_first(pair: tuple[Fraction, Any]) -> tuple[bool, bool]:
        factor, _ = pair
        return factor < 0, abs(factor) != 1

    first, *rest = sorted(pairs, key=plain_first)
    factor, total = first
    if factor != 1:
        total = total * number(factor)
    for factor, t in rest:
        size = abs(factor)
        term = t if size == 1 else t * number(size)
        total = total + term if factor > 0 else total - term
    return total


@dataclass(frozen=True, slots=True)
class Filtering:
    """F(tile, window) along one axis."""

    tile: int
    window: int
    inputs: Matrix
    filters: Matrix
    results: Matrix

    @property
    def size(self) -> int:
        """Inputs of a tile, and points."""
        return self.tile + self.window - 1

    def reach(self, results: int) -> int:
        """How many leading inputs of a tile its first `results` results depend on.

        A result needs `window` of them; later ones enter with factors that cancel.
        """
        points = {p for row in self.results.rows[:results] for p in _used(row)}
        inputs = {n for p in points for n in _used(self.inputs.rows[p])}
        return 1 + max(inputs)

    @property
    def roundings(self) -> int:
        """The most roundings of a term of a result on its way, along both axes, but for
        the sum over channels: of constants, multiplications and additions."""
        steps = (
            (self.inputs, self.size),
            (self.filters, self.window),
            (self.results, self.size),
        )
        total = 0
        for matrix, n in steps:
            results = matrix.apply([_Rounded(0)] * n, _constant)
            total += 2 * max(e.count for e in results)
        return total

    @property
    def growth(self) -> float:
        """The most that a result's terms add up to in magnitude, of inputs and filters up to 1."""
        rows = zip(self.filters.rows, self.inputs.rows)
        between = [_size(g) * _size(b) for g, b in rows]
        sizes = []
        for row in self.results.rows:
            sizes.append(_size(a * x for a, x in zip(row, between)))
        return float(max(sizes))


@cache
def filtering(tile: int, window: int = 3) -> Filtering:
    """F(tile, window) with the points of `PAIRS`.

    requires: n - 1 = tile + window - 2 numbers, all different; an error else (`N(p)` is 0 where
    two are the same).
    """
    points = [Fraction(0), *(s * p for p in PAIRS[tile] for s in (-1, 1))]
    size = tile + window - 1
    assert len(points) == size - 1, f"F({tile}, {window}) takes {size - 1} points"
    inputs = []
    filters = []
    results = []
    for p in points:
        others = [q for q in points if q != p]
        scale = math.prod((p - q for q in others), start=Fraction(1))
        inputs.append((*_with_roots(others), Fraction(0)))
        filters.append(tuple(p**n / scale for n in range(window)))
        results.append(tuple(p**n for n in range(tile)))
    inputs.append(_with_roots(points))
    filters.append(_leading(window))
    results.append(_leading(tile))
    even = range(0, size, 2)
    odd = range(1, size, 2)
    plus_and_minus = [(n, n + 1) for n in range(1, size - 2, 2)]
    return Filtering(
        tile,
        window,
        inputs=Matrix(tuple(inputs), (tuple(even), tuple(odd))),
        filters=Matrix(
            tuple(filters),
            tuple(tuple(n for n in half if n < window) for half in (even, odd)),
        ),
        results=Matrix(
            tuple(zip(*results, strict=True)),
            ((0,), *plus_and_minus, (size - 1,)),
        ),
    )


def _used(row: Row) -> list[int]:
    """Where a row is not 0."""
    return [n for n, factor in enumerate(row) if factor]


def _with_roots(roots: Sequence[Fraction]) -> Row:
    """The coefficients of the product of (x - q), the constant one first."""
    zero = Fraction(0)
    poly: Row = (Fraction(1),)
    for q in roots:
        shifted = (zero, *poly)
        scaled = (*(q * c for c in poly), zero)
        poly = tuple(a - b for a, b in zip(shifted, scaled, strict=True))
    return poly


def _leading(size: int) -> Row:
    zeros = (Fraction(0),) * (size - 1)
    return (*zeros, Fraction(1))


def _size(row: Any) -> Fraction:
    return sum(map(abs, row), Fraction(0))


@dataclass(frozen=True, slots=True)
class _Rounded:
    """A number that counts the roundings of its terms, in float32."""

    count: int

    def __add__(self, other: _Rounded) -> _Rounded:
        return _Rounded(max(self.count, other.count) + 1)

    __sub__ = __add__

    def __mul__(self, constant: int) -> _Rounded:
        return _Rounded(self.count + constant)


def _constant(c: Fraction) -> int:
    """Roundings of a multiplication by it: none by a power of two, its own where it is inexact."""
    exact = c.denominator.bit_count() == 1 and c.numerator.bit_length() <= FLOAT32_BITS
    if exact and abs(c.numerator).bit_count() == 1:
        return 0
    return 1 if exact else 2
