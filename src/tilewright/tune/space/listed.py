"""A space of a few candidates that are listed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

from tilewright.base.errors import InputError
from tilewright.tune.base import Candidate


class ListedSpace:
    """The candidates of a list, each the neighbor of all others; the first is the default.

    Raises InputError for an empty list.
    """

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        if not candidates:
            raise InputError("a space needs a candidate", where="ListedSpace")
        self.candidates: Final = tuple(dict.fromkeys(candidates))

    @property
    def size(self) -> int:
        """The number of candidates."""
        return len(self.candidates)

    def default(self) -> Candidate:
        """The first."""
        return self.candidates[0]

    def sample(self, random: Random) -> Candidate:
        """Any of them."""
        return random.choice(self.candidates)

    def neighbor(self, candidate: Candidate, random: Random) -> Candidate:
        """Any other one, if there is one."""
        others = [c for c in self.candidates if c != candidate]
        return random.choice(others) if others else candidate

    def cross(self, a: Candidate, b: Candidate, random: Random) -> Candidate:
        """One of both: they have no parameters."""
        return random.choice((a, b))

    def __iter__(self) -> Iterator[Candidate]:
        """All, in order."""
        return iter(self.candidates)
