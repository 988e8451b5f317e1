"""Baselines that learn nothing: random search, and exhaustive enumeration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from tilewright.tune.base import Candidate
from tilewright.tune.strategies.proposer import DRAWS, Proposer


class RandomSampling(Proposer):
    """Random candidates, each once."""

    name: ClassVar[str] = "random"

    def search(self, count: int) -> Iterable[Candidate]:
        """Draw enough candidates that a few known ones do not matter."""
        return self.drawn(DRAWS * count)


class Exhaustive(Proposer):
    """All candidates in the order of the space, after the default and the seeds."""

    name: ClassVar[str] = "exhaustive"

    def propose(self, count: int) -> list[Candidate]:
        """The next candidates."""
        self._rest = self._rest or iter(self.space)
        batch = self._fresh(self._first, count)
        return batch + self._fresh(self._rest, count - len(batch))
