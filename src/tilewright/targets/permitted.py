"""Where sanitized code may access a buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd

from tilewright.base.dataclass import dataclass
from tilewright.expr.nodes import Buffer, Expr


@dataclass(frozen=True, slots=True)
class IndexSet:
    """Indices along an axis: first + the sum of step * n, 0 <= n < count, over its terms.

    terms: (step, count), the largest step first; all that those after one add is below its step,
    so that an index is taken apart by dividing.
    """

    first: int
    terms: tuple[tuple[int, int], ...] = ()

    @classmethod
    def over(cls, first: int, factors: Sequence[tuple[int, int]]) -> IndexSet:
        """The least that has first + the sum of step * n for these (step, count), steps above 0."""
        terms: list[tuple[int, int]] = []
        added = 0
        for step, count in sorted(f for f in factors if f[1] > 1):
            if (
                step <= added
            ):  # two ways to one index, or in between: all that could be there
                every = gcd(step, *(s for s, _ in terms))
                terms = [(every, (added + step * (count - 1)) // every + 1)]
            elif terms and step == terms[0][0] * terms[0][1]:
                terms[0] = (terms[0][0], terms[0][1] * count)
            else:
                terms.insert(0, (step, count))
            added += step * (count - 1)
        return cls(first, tuple(terms))

    @property
    def last(self) -> int:
        """The greatest index."""
        return self.first + sum(step * (count - 1) for step, count in self.terms)

    @property
    def dense(self) -> bool:
        """Whether it has every index from the first to the last."""
        return all(step == 1 for step, _ in self.terms)

    @property
    def filled(self) -> IndexSet:
        """Every index from the first to the last."""
        return IndexSet.over(self.first, [(1, self.last - self.first + 1)])

    def __contains__(self, index: int) -> bool:
        rest = index - self.first
        for step, count in self.terms:
            n, rest = divmod(rest, step)
            if not 0 <= n < count:
                return False
        return rest == 0

    def around(self, other: IndexSet) -> IndexSet:
        """The least with one step that has both."""
        if self == other:
            return self
        first = min(self.first, other.first)
        last = max(self.last, other.last)
        steps = (step for step, _ in (*self.terms, *other.terms))
        step = gcd(self.first - other.first, *steps)
        return IndexSet.over(first, [(step, (last - first) // step + 1)])

    def __str__(self) -> str:
        if self.dense:
            return f"{self.first}..{self.last}"
        return " + ".join(
            [f"{self.first}", *(f"{s} * 0..{n - 1}" for s, n in self.terms)]
        )


@dataclass(frozen=True, slots=True)
class Below:
    """Indices from 0 on along an axis whose extent only a call decides."""

    extent: Expr

    @property
    def dense(self) -> bool:
        """As of an IndexSet."""
        return True

    def __contains__(self, index: int) -> bool:
        """Whether it is there at any extent: none is known to be."""
        return False

    def __str__(self) -> str:
        return f"0..{self.extent - 1}"


@dataclass(frozen=True, slots=True)
class Permitted:
    """What may be loaded of a buffer, and stored: the indices along each axis."""

    loads: tuple[IndexSet, ...]
    stores: tuple[IndexSet, ...]


# By buffer; others may be accessed everywhere.
Permissions = Mapping[Buffer, Permitted]
