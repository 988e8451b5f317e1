"""Functions of sizes: sums of terms, each a number times `(size + shift) // divisor`.

A window with stride 2 has about h // 2 positions along a size h, and a second one after it about
h // 4. Every function that grows by a fixed amount per period of a size is such a sum. The terms
that occur are found from the shapes of a graph at consecutive sizes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, Final

import numpy as np

from tilewright.base.errors import TilewrightError
from tilewright.expr.nodes import Expr, FloorDiv, Var, const
from tilewright.graph.specialize import InferredTypes

Extents = Mapping[str, int]  # of symbolic dimensions, by name
Row = list[Fraction]

# Steps from size to size that are looked at first, and at most: twice the longest period.
FIRST: Final = 8
MOST: Final = 128
# Elements of an array of which the numbers are looked at, at most: shape arithmetic has few.
FEW: Final = 16


@dataclass(frozen=True, order=True, slots=True)
class SizeTerm:
    """`(size + shift) // divisor`, with a shift below the divisor."""

    size: str
    divisor: int = 1
    shift: int = 0

    def at(self, extents: Extents) -> int:
        """Its value at these sizes."""
        return (extents[self.size] + self.shift) // self.divisor

    def expr(self, size: Var) -> Expr:
        """The same expression for a variable."""
        if self.divisor == 1:
            return size
        shifted = size + const(self.shift) if self.shift else size
        return FloorDiv(shifted, const(self.divisor))


Terms = Mapping[str, Sequence[SizeTerm]]  # by size; the size itself is one of them


@dataclass(frozen=True, eq=False, slots=True)
class _SizeLine:
    """The factors of one size's terms from values at points that differ in that size alone.

    They are `inverse @ (values at points - value at the start) / divisor`.
    """

    terms: tuple[SizeTerm, ...]
    points: tuple[int, ...]
    inverse: np.ndarray[Any, Any]
    divisor: int


@dataclass(frozen=True, eq=False, slots=True)
class Basis:
    """Determines sums of terms from their values at some points.

    points: a start, and others. Each size keeps as many terms as are distinguished by the points
    that differ from the start only in that size.
    """

    points: Sequence[Extents]
    lines: Mapping[str, _SizeLine]

    @classmethod
    def of(cls, points: Sequence[Extents], terms: Terms) -> Basis:
        """A basis of the given points and terms, without terms that cannot be distinguished."""
        start, *others = points
        lines = {}
        for size, known in terms.items():
            alone = [
                n
                for n, p in enumerate(others, 1)
                if all((p[s] == start[s]) != (s == size) for s in start)
            ]
            kept, told = _independent(known, start, [points[n] for n in alone])
            inverse, divisor = _inverse(kept, start, [points[alone[n]] for n in told])
            places = tuple(alone[n] for n in told)
            lines[size] = _SizeLine(kept, places, inverse, divisor)
        return cls(points, lines)

    def factors(self, found: Sequence[Any]) -> dict[SizeTerm, Any] | None:
        """The nonzero factors, by term, of the sum with these values at the points.

        found: numbers or arrays. None if a factor of integers is not an integer. The sum has these
        values at the points of the lines; at other points it may differ.
        """
        made: dict[SizeTerm, Any] = {}
        first = np.asarray(found[0])
        kind = first.dtype if first.dtype.kind == "f" else object
        for line in self.lines.values():
            if not line.points:
                continue
            values = np.stack([np.asarray(found[n], kind) for n in line.points])
            rises = np.tensordot(line.inverse, values - first.astype(kind), 1)
            if kind is not object:
                rises = rises / line.divisor
            elif np.any(rises % line.divisor):
                return None
            else:
                rises = rises // line.divisor
            made |= {
                t: rise
                for t, rise in zip(line.terms, rises, strict=True)
                if np.any(rise)
            }
        return made


def _independent(
    terms: Sequence[SizeTerm], start: Extents, points: Sequence[Extents]
) -> tuple[tuple[SizeTerm, ...], list[int]]:
    """Linearly independent terms at the points, and the indices of points that prove it."""
    rows: dict[int, Row] = {}  # by the number of the term that it has first
    told = []
    for number, point in enumerate(points):
        row = [Fraction(t.at(point) - t.at(start)) for t in terms]
        for first, known in rows.items():
            row = _reduced(row, known, first)
        first = next((n for n, value in enumerate(row) if value), len(row))
        if first < len(row):
            rows[first] = row
            told.append(number)
    # In the order of the rows: so each point tells one term more.
    return tuple(terms[n] for n in rows), told


def _reduced(row: Row, by: Row, column: int) -> Row:
    """A row that is zero in a column, by another one."""
    times = row[column] / by[column]
    return [a - times * b for a, b in zip(row, by, strict=True)]


def _inverse(
    terms: Sequence[SizeTerm], start: Extents, points: Sequence[Extents]
) -> tuple[np.ndarray[Any, Any], int]:
    """The inverse of the matrix of terms at points less those at the start, times a number."""
    count = len(terms)
    rows: list[Row] = []
    for n, point in enumerate(points):
        unit = [Fraction(int(n == k)) for k in range(count)]
        rows.append([Fraction(t.at(point) - t.at(start)) for t in terms] + unit)
    for column in range(count):
        pivot = next(n for n in range(column, count) if rows[n][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        scale = rows[column][column]
        rows[column] = [value / scale for value in rows[column]]
        for n in range(count):
            if n != column:
                rows[n] = _reduced(rows[n], rows[column], column)
    right = [row[count:] for row in rows]
    divisor = math.lcm(*(value.denominator for row in right for value in row))
    numbers = [[int(value * divisor) for value in row] for row in right]
    return np.array(numbers, object).reshape(count, count), divisor


def points_of(
    start: Extents, terms: Sequence[SizeTerm], wished: Iterable[int]
) -> list[Extents]:
    """Points that differ from the start in the terms' size and distinguish the terms.

    wished: candidate extents, the best first.
    """
    size = terms[0].size
    points = [{**start, size: n} for n in wished if n != start[size]]
    _, told = _independent(terms, start, points)
    return [points[n] for n in told]


def terms_of(
    typing_at: Callable[[Extents], InferredTypes],
    start: Extents,
    size: str,
    ends: tuple[int, int],
    far: int,
) -> tuple[SizeTerm, ...]:
    """The size, and the floors of it that occur in shapes and shape arithmetic.

    They are searched at consecutive sizes around the start for which the graph type-checks: between
    the ends, least and most, unless these are too close. far: another size, at which they must
    hold, too.
    """
    least, most = ends
    known: dict[int, Mapping[Any, Any]] = {}
    found: set[SizeTerm] = set()
    count = FIRST
    while count <= MOST:
        first = min(start[size], max(least, most - count))
        window = [*range(first, first + count + 1), far]
        for n in window:
            if n not in known:
                try:
                    typing = typing_at({**start, size: n})
                except TilewrightError:
                    return (SizeTerm(size), *sorted(found))
                known[n] = dict(_numbers(typing))
        lines = _lines([known[n] for n in window])
        made = [_floors(line, size, window) for line in lines]
        found = {term for terms in made for term in terms or ()}
        if all(terms is not None for terms in made):
            break
        count *= 2
    return (SizeTerm(size), *sorted(found))


def every_floor(terms: Sequence[SizeTerm], most: int) -> tuple[SizeTerm, ...]:
    """The terms of all functions with the common period of the given terms, if it is at most
    `most`."""
    period = math.lcm(*(t.divisor for t in terms))
    if period == 1 or period > most:
        return tuple(terms)
    size = terms[0].size
    return (SizeTerm(size), *(SizeTerm(size, period, n) for n in range(period)))


def _numbers(typing: InferredTypes) -> Iterator[tuple[Any, Any]]:
    """Extents, and small integer arrays, by value of the graph."""
    for v, typed in typing.env.items():
        if typed.static:
            yield v, np.array(typed.extents, np.int64)
        array = typing.known.get(typed)
        if array is not None and array.dtype.kind == "i" and array.size <= FEW:
            yield (v, "numbers"), array


def _lines(known: Sequence[Mapping[Any, Any]]) -> Iterator[tuple[int, ...]]:
    """Each distinct sequence of numbers that is not constant."""
    seen = set()
    for name, first in known[0].items():
        arrays = [k[name] for k in known if name in k]
        if len(arrays) < len(known) or any(a.shape != first.shape for a in arrays):
            continue
        for line in np.stack(arrays).reshape(len(known), -1).T.tolist():
            rises = tuple(n - line[0] for n in line)
            if any(rises) and rises not in seen:
                seen.add(rises)
                yield rises


def _floors(
    line: Sequence[int], size: str, window: Sequence[int]
) -> list[SizeTerm] | None:
    """The floors whose sum is a sequence, along a window of extents that are consecutive except the
    last one; None if it has no short period."""
    first, *_, far = window
    steps = [b - a for a, b in pairwise(line[:-1])]
    period = _period(steps)
    if period is None:
        return None
    periods, rest = divmod(far - first, period)
    if line[rest] + periods * (line[period] - line[0]) != line[-1]:
        return None
    ((usual, _),) = Counter(sorted(steps[:period], key=abs)).most_common(1)
    return [
        SizeTerm(size, period, -(first + n + 1) % period)
        for n, step in enumerate(steps[:period])
        if step != usual and period > 1
    ]


def _period(steps: Sequence[int]) -> int | None:
    """The period of the steps, which must occur at least twice."""
    for period in range(1, len(steps) // 2 + 1):
        if all(a == b for a, b in zip(steps, steps[period:], strict=False)):
            return period
    return None
