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

With a stride s, each s-th element of a filter meets inputs that are s apart. Such a phase is a
filtering of stride 1 by a shorter filter, and the results are the sums over the phases. F(2, 3) of
stride 2 is F(2, 2) of the even inputs and F(2, 1), two plain products, of the odd ones: 5 points
instead of 6 products.

Large m saves multiplications and costs accuracy: the intermediate numbers grow and cancel. Zero
and +-1 are best for m = 2. For m = 4 the usual +-1 and +-2 let a result's terms grow 48 times per
axis, +-5/8 and +-3/2 24 times, with half the error that is measured (pairs near p and 1/p, as
Alam et al. find in Winograd Convolution for Deep Neural Networks: Efficient Point Selection,
2022; these have few bits, so that B^T and A^T are exact in float32).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from fractions import Fraction
from functools import cache
from itertools import accumulate
from typing import Any, Final

from tilewright.base.dataclass import dataclass

Row = tuple[Fraction, ...]
Columns = tuple[tuple[int, ...], ...]
Part = Sequence[tuple[Fraction, int]]  # coefficients and columns


@dataclass(frozen=True, eq=False, slots=True)
class _Factor:
    """A number that a term is multiplied by, with what a sum asks of it. size: None for 1."""

    value: Fraction
    negative: bool
    size: Fraction | None

    @staticmethod
    def of(value: Fraction) -> _Factor:
        size = abs(value)
        return _Factor(value, value < 0, None if size == 1 else size)

    @property
    def order(self) -> tuple[bool, bool]:
        """Terms that are neither subtracted nor multiplied come first."""
        return self.negative, self.size is not None


Terms = tuple[tuple[_Factor, int], ...]  # in the order of a sum, with columns
Sums = tuple[tuple[_Factor, Terms], ...]

FLOAT32_BITS: Final = 24  # of a number's fraction

# By m and r: the points besides infinity; of a pair -p, p both.
NUMBERS: Final[Mapping[tuple[int, int], tuple[Fraction, ...]]] = {
    (2, 2): (Fraction(0), Fraction(1)),
    (2, 3): (Fraction(0), Fraction(-1), Fraction(1)),
    (4, 3): (
        Fraction(0),
        *(sign * p for p in (Fraction(5, 8), Fraction(3, 2)) for sign in (-1, 1)),
    ),
}
STRIDES: Final[Mapping[int, tuple[int, ...]]] = {2: (1, 2), 4: (1,)}  # by m, for r = 3


@dataclass(frozen=True, slots=True)
class Matrix:
    """A transform. groups: a partition of the columns; rows share the groups' sums up to a factor.

    Each column is in exactly one group, since others would be ignored. No row is all zeros.
    """

    rows: tuple[Row, ...]
    groups: Columns
    _sums: list[Sums] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    @property
    def sums(self) -> Sequence[Sums]:
        """For each row the sums over groups, with their factors, as `apply` adds them up."""
        if not self._sums:
            self._sums.extend(_ordered(self._parts(row)) for row in self.rows)
        return self._sums

    def apply(
        self,
        terms: Sequence[Any],
        number: Callable[[Fraction], Any],
    ) -> list[Any]:
        """The matrix times a vector of numbers or expressions; `number` makes its constants.

        Terms that are zero are left out, and multiplications by one.
        """
        return [_dot(sums, terms, number) for sums in self.sums]

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


def _ordered(parts: Sequence[tuple[Fraction, Part]]) -> Sums:
    found = []
    for factor, part in parts:
        terms = [(_Factor.of(c), n) for c, n in part]
        terms.sort(key=lambda term: term[0].order)
        found.append((_Factor.of(factor), tuple(terms)))
    found.sort(key=lambda term: term[0].order)
    return tuple(found)


def _dot(
    sums: Sums,
    terms: Sequence[Any],
    number: Callable[[Fraction], Any],
) -> Any:
    outer = []
    for factor, part in sums:
        inner = [(c, terms[n]) for c, n in part]
        outer.append((factor, _sum(inner, number)))
    return _sum(outer, number)


def _operations(pairs: Part) -> int:
    return len(pairs) - any(abs(c) == 1 for c, _ in pairs)


def _sum(
    pairs: Sequence[tuple[_Factor, Any]],
    number: Callable[[Fraction], Any],
) -> Any:
    """The sum of `c * t`, in this order."""
    (factor, total), *rest = pairs
    if factor.negative or factor.size is not None:
        total = total * number(factor.value)
    for factor, t in rest:
        term = t if factor.size is None else t * number(factor.size)
        total = total - term if factor.negative else total + term
    return total


@dataclass(frozen=True, slots=True)
class Filtering:
    """F(tile, window) along one axis, of windows `stride` apart."""

    tile: int
    window: int
    stride: int
    inputs: Matrix
    filters: Matrix
    results: Matrix

    @property
    def size(self) -> int:
        """Inputs of a tile, and points."""
        return self.stride * (self.tile - 1) + self.window

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
def filtering(tile: int, window: int = 3, stride: int = 1) -> Filtering:
    """F(tile, window) with the points of `NUMBERS`, by phases if the stride is not 1.

    requires: n - 1 = tile + window - 2 numbers, all different; an error else (`N(p)` is 0 where
    two are the same).
    """
    if stride > 1:
        return _by_phases(tile, window, stride)
    if window == 1:
        return _plain(tile)
    points = NUMBERS[tile, window]
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
    pairs = [(n, n + 1) for n in range(1, size - 2, 2)]
    rest = [(n,) for n in range(size) if not any(n in pair for pair in pairs)]
    return Filtering(
        tile,
        window,
        1,
        inputs=Matrix(tuple(inputs), (tuple(even), tuple(odd))),
        filters=Matrix(
            tuple(filters),
            tuple(tuple(n for n in half if n < window) for half in (even, odd)),
        ),
        results=Matrix(
            tuple(zip(*results, strict=True)), tuple(sorted((*pairs, *rest)))
        ),
    )


def _plain(tile: int) -> Filtering:
    """F(tile, 1): a product for each result."""
    one = ((0,),)
    alone = tuple((n,) for n in range(tile))
    units = tuple(
        tuple(Fraction(int(n == k)) for k in range(tile)) for n in range(tile)
    )
    filters = Matrix(((Fraction(1),),) * tile, one)
    return Filtering(tile, 1, 1, Matrix(units, alone), filters, Matrix(units, alone))


def _by_phases(tile: int, window: int, stride: int) -> Filtering:
    """The filterings of every `stride`-th input side by side, their results added up."""
    parts = [
        filtering(tile, len(range(phase, window, stride))) for phase in range(stride)
    ]
    size = stride * (tile - 1) + window
    taken = [tuple(range(phase, size, stride)) for phase in range(stride)]
    taps = [tuple(range(phase, window, stride)) for phase in range(stride)]
    ends = list(accumulate((f.size for f in parts), initial=0))
    points = [tuple(range(*ends[n : n + 2])) for n in range(stride)]
    results = tuple(
        tuple(c for f in parts for c in f.results.rows[n]) for n in range(tile)
    )
    return Filtering(
        tile,
        window,
        stride,
        inputs=_spread([f.inputs for f in parts], tuple(taken), size),
        filters=_spread([f.filters for f in parts], tuple(taps), window),
        results=Matrix(
            results, _moved_groups([f.results for f in parts], tuple(points))
        ),
    )


def _spread(parts: Sequence[Matrix], columns: Columns, width: int) -> Matrix:
    """The rows of all matrices, with the columns of each where `columns` says."""
    rows = []
    for m, at in zip(parts, columns, strict=True):
        for row in m.rows:
            found = dict(zip(at, row, strict=True))
            rows.append(tuple(found.get(n, Fraction(0)) for n in range(width)))
    return Matrix(tuple(rows), _moved_groups(parts, columns))


def _moved_groups(parts: Sequence[Matrix], columns: Columns) -> Columns:
    return tuple(
        tuple(at[n] for n in group)
        for m, at in zip(parts, columns, strict=True)
        for group in m.groups
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
