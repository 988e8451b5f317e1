"""Simulated annealing on predicted costs, with diverse batches of the best, as in AutoTVM.

The chains persist across rounds. (Chen et al., NeurIPS 2018, sections 5.3 and 5.4.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from math import inf
from statistics import pstdev
from typing import ClassVar, Final

from tilewright.search import SearchLimits, anneal_chains
from tilewright.search.chains import CHAINS
from tilewright.tune.base import Candidate
from tilewright.tune.strategies.proposer import ModelGuided, Setup

STEPS: Final = 16  # minimum per chain: a small effort means fewer chains
# The initial temperature, in standard deviations of the starts' costs.
HEAT: Final = 0.3
LEEWAY: Final = 2  # batches are chosen from this many times their size
# The value of a batch of only new values, relative to the range of costs.
DIVERSITY: Final = 0.5


class Annealing(ModelGuided):
    """See above; a step is a `neighbor` of the space."""

    name: ClassVar[str] = "annealing"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._walks: list[Candidate] = []

    def explore(self, effort: int) -> None:
        """Run some steps of all chains, from hot to cold."""
        chains = max(1, min(CHAINS, effort // STEPS))
        missing = max(0, chains - len(self._walks))
        starts = [*self._walks[:chains], *self.drawn(missing)]
        costs = [c for c in self.foresight.costs(starts) if c < inf]
        found = anneal_chains(
            starts,
            self.space.neighbor,
            self.foresight.costs,
            hot=HEAT * (pstdev(costs) if costs else 1.0),
            steps=max(1, effort // chains),
            key=_key,
            seed=self.random("anneal").getrandbits(32),
            limits=SearchLimits(evaluations=max(effort, chains)),
        )
        if found.checkpoint is not None and found.checkpoint.states:
            self._walks = [walk for walk, _ in found.checkpoint.states]

    def chosen(self, count: int) -> Iterable[Candidate]:
        """A batch of good candidates that covers many values, then the others."""
        ranked = self.unseen(self.foresight.ranked())
        pool = list(islice(ranked, LEEWAY * count))
        costs = self.foresight.costs(pool)
        yield from diverse(pool, costs)
        yield from ranked


def diverse(pool: Sequence[Candidate], costs: Sequence[float]) -> Iterator[Candidate]:
    """Order the pool so that each is cheap and has values that the ones before it lack.

    Greedy: pick the remaining candidate with the least normalized cost (0 to 1 over the pool) minus
    DIVERSITY times the fraction of its values that are new. Coverage is submodular, so a batch is
    at least 63% as good as the best one of its size.
    """
    low, high = min(costs, default=0.0), max(costs, default=0.0)
    span = high - low or 1.0
    left = {n: (cost - low) / span for n, cost in enumerate(costs)}
    values = [_values(c) for c in pool]
    covered: set[tuple[str, str]] = set()

    def price(n: int) -> float:
        new = len(values[n] - covered) / max(1, len(values[n]))
        return left[n] - DIVERSITY * new

    while left:
        taken = min(left, key=price)
        del left[taken]
        covered |= values[taken]
        yield pool[taken]


def _values(candidate: Candidate) -> set[tuple[str, str]]:
    return {(name, repr(value)) for name, value in candidate.values.items()}


def _key(candidate: Candidate) -> str:
    return candidate.key
