"""Sums along sizes, and products of two of them.

The places of a detector's boxes are such: of maps of h // 8 by w // 8 and of h // 16 by w // 16
positions, the boxes are one behind another. Which products occur is seen from tensors that have
both factors as extents.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import combinations
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.driver.ranges.size_terms import Basis, Extents, SizeTerm

Slope = tuple[
    tuple[SizeTerm, int], ...
]  # in the order of terms, without common factors


@dataclass(frozen=True, eq=False, slots=True)
class SizeSum:
    """A sum of terms with these factors, and a constant."""

    factors: Mapping[SizeTerm, int]
    constant: int

    @classmethod
    def through(
        cls,
        factors: Mapping[SizeTerm, Any],
        point: Extents,
        value: int,
    ) -> SizeSum:
        """The sum with a given value at a point."""
        whole = {t: int(c) for t, c in factors.items()}
        return cls(whole, value - sum(c * t.at(point) for t, c in whole.items()))

    def at(
        self,
        extents: Extents,
    ) -> int:
        """The sum at these sizes."""
        return self.constant + sum(c * t.at(extents) for t, c in self.factors.items())

    def by_size(
        self,
        start: Extents,
    ) -> list[SizeSum]:
        """For each size, the sum along it from the start, without common factors."""
        found = []
        for size in dict.fromkeys(t.size for t in self.factors):
            own = {t: c for t, c in self.factors.items() if t.size == size}
            line = SizeSum.through(own, start, self.at(start))
            common = math.gcd(line.constant, *own.values())
            parts = {t: c // common for t, c in own.items()}
            found.append(SizeSum(parts, line.constant // common))
        return found

    def is_told_from_products(
        self,
        points: Sequence[Extents],
    ) -> bool:
        """Whether two sizes change it together, and each two of their terms, from the first point.

        Else a product of sums has the values of a sum at all these points: where h rises by 1 and
        h // 2, too, h - h // 2 does not.
        """
        start = points[0]
        moved = [{t for t in self.factors if t.at(p) != t.at(start)} for p in points]
        changed = [{n for n in self.sizes if self._change(n, start, p)} for p in points]
        return all(
            any({a, b} <= terms for terms in moved)
            and any({a.size, b.size} <= both for both in changed)
            for a, b in combinations(self.factors, 2)
            if a.size != b.size
        )

    @property
    def sizes(self) -> frozenset[str]:
        """The sizes that it depends on."""
        return frozenset(t.size for t in self.factors)

    def _change(
        self,
        size: str,
        start: Extents,
        extents: Extents,
    ) -> int:
        own = ((t, c) for t, c in self.factors.items() if t.size == size)
        return sum(c * (t.at(extents) - t.at(start)) for t, c in own)

    def plus(
        self,
        other: SizeSum,
        times: int,
        more: int = 0,
    ) -> SizeSum:
        """The sum with so many times another one added, and a number."""
        terms = dict.fromkeys((*self.factors, *other.factors))
        factors = {
            t: self.factors.get(t, 0) + times * other.factors.get(t, 0) for t in terms
        }
        kept = {t: c for t, c in factors.items() if c}
        return SizeSum(kept, self.constant + times * other.constant + more)


@dataclass(frozen=True, slots=True)
class SizeProduct:
    """What grows with two sizes at once: the product of two sums' changes from the start."""

    one: Slope
    other: Slope

    @classmethod
    def of(
        cls,
        one: Mapping[SizeTerm, int],
        other: Mapping[SizeTerm, int],
    ) -> SizeProduct:
        """Of two sums, of one size each, by the factors of their terms."""
        return cls(*sorted(map(_slope, (one, other))))

    @property
    def sizes(self) -> tuple[str, str]:
        """The two sizes."""
        return self.one[0][0].size, self.other[0][0].size

    def change(
        self,
        start: Extents,
        extents: Extents,
    ) -> int:
        """The product of the changes from the start to these sizes."""
        return math.prod(
            sum(c * (t.at(extents) - t.at(start)) for t, c in slope)
            for slope in (self.one, self.other)
        )

    def factors(
        self,
        one: SizeSum,
        other: SizeSum,
    ) -> Factors:
        """Two sums with this product: with the constants of those given, if these are such sums."""
        constants = {
            _slope(s.factors): s.constant for s in (one, other) if _is_slope(s)
        }
        a, b = (SizeSum(dict(s), constants.get(s, 0)) for s in (self.one, self.other))
        return a, b


Factors = tuple[SizeSum, SizeSum]


def known_products(
    basis: Basis,
    shapes: Iterable[Sequence[Sequence[int]]],
) -> dict[SizeProduct, Factors]:
    """The products of two extents of a tensor, each of which depends on one size, another one.

    shapes: of each tensor, its shapes at the points of the basis.
    """
    lines: dict[tuple[int, ...], SizeSum | None] = {}
    found: dict[SizeProduct, Factors] = {}
    for at_points in shapes:
        if len({len(shape) for shape in at_points}) > 1:
            continue
        known = []
        for line in zip(*at_points, strict=True):
            if line not in lines:
                lines[line] = _along_one(basis, line)
            known.append(lines[line])
        for one, other in combinations((s for s in known if s is not None), 2):
            if len({t.size for s in (one, other) for t in s.factors}) == 2:
                product = SizeProduct.of(one.factors, other.factors)
                found.setdefault(product, product.factors(one, other))
    return found


def times_each(
    products: Sequence[SizeProduct],
    points: Sequence[Extents],
    rest: Sequence[int],
) -> dict[SizeProduct, int] | None:
    """How often each product is in a number, nonzero; None if they do not explain it.

    points: the start, and others. rest: of the number at the points, less its changes along single
    sizes. One of many explanations, if the points do not decide.
    """
    start = points[0]
    columns = [[p.change(start, point) for point in points] for p in products]
    found = _solved(columns, rest)
    if found is None or any(n.denominator > 1 for n in found):
        return None
    return {p: int(n) for p, n in zip(products, found, strict=True) if n}


def are_told(
    products: Sequence[SizeProduct],
    points: Sequence[Extents],
) -> bool:
    """Whether the points decide how often each product is in a number: those that no points tell,
    as they depend on each other, aside."""
    pairs = [{(a, b): m * n for a, m in p.one for b, n in p.other} for p in products]
    terms = list(dict.fromkeys(pair for p in pairs for pair in p))
    forms = [[p.get(pair, 0) for pair in terms] for p in pairs]
    columns = [[p.change(points[0], point) for point in points] for p in products]
    return _rank(columns) == _rank(forms)


def _slope(
    factors: Mapping[SizeTerm, int],
) -> Slope:
    common = math.gcd(*factors.values())
    terms = sorted(factors.items())
    sign = 1 if terms[0][1] > 0 else -1
    return tuple((t, sign * c // common) for t, c in terms)


def _is_slope(s: SizeSum) -> bool:
    return tuple(sorted(s.factors.items())) == _slope(s.factors)


def _along_one(
    basis: Basis,
    line: Sequence[int],
) -> SizeSum | None:
    """The sum with these values at the points, if it is one along a single size."""
    factors = basis.factors(line) if len(set(line)) > 1 else None
    if not factors or len({t.size for t in factors}) > 1:
        return None
    found = SizeSum.through(factors, basis.points[0], line[0])
    exact = all(found.at(p) == n for p, n in zip(basis.points, line, strict=True))
    return found if exact else None


def _solved(
    columns: Sequence[Sequence[int]],
    wanted: Sequence[int],
) -> list[Fraction] | None:
    """Factors of the columns whose sum is wanted, 0 of a column that others explain."""
    count = len(columns)
    rows, pivots = _reduced([*zip(*columns, wanted, strict=True)], count)
    if any(row[-1] for row in rows[len(pivots) :]):
        return None
    found = [Fraction(0)] * count
    for row, column in zip(rows, pivots, strict=False):
        found[column] = row[-1]
    return found


def _rank(columns: Sequence[Sequence[int]]) -> int:
    return len(_reduced([*zip(*columns, strict=True)], len(columns))[1])


def _reduced(
    numbers: Sequence[Sequence[int]],
    count: int,
) -> tuple[list[list[Fraction]], list[int]]:
    """The rows of a matrix after elimination in the first columns, and those with a pivot."""
    rows = [[Fraction(n) for n in row] for row in numbers]
    pivots: list[int] = []
    for column in range(count):
        done = len(pivots)
        pivot = next((n for n in range(done, len(rows)) if rows[n][column]), None)
        if pivot is None:
            continue
        rows[done], rows[pivot] = rows[pivot], rows[done]
        scale = rows[done][column]
        rows[done] = [n / scale for n in rows[done]]
        for n, row in enumerate(rows):
            if n != done and row[column]:
                by = zip(row, rows[done], strict=True)
                rows[n] = [a - row[column] * b for a, b in by]
        pivots.append(column)
    return rows, pivots
