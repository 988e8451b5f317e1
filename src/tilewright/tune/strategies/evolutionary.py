"""Evolution of candidates by predicted cost, as in Ansor.

A population of measured, surviving and random candidates evolves for a few generations; the best of
all individuals are proposed. (Zheng et al., OSDI 2020, section 5.1.)
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import ClassVar, Final

from tilewright.search import Breeding, SearchLimits, evolve
from tilewright.tune.base import Candidate
from tilewright.tune.strategies.proposer import ModelGuided

GENERATIONS: Final = 4
POPULATION: Final = 2048  # maximum; sized so that the effort lasts for all generations
CROSSING: Final = 0.15  # probability of crossover; otherwise mutation
MEASURED: Final = 0.2  # share of a population
SURVIVING: Final = 0.3  # share of a population, from the last round
NEAR: Final = 0.35  # share of the others, near measured ones; the rest is random
CHANGES: Final = 3  # the most parameters that a neighbor differs in


class Evolutionary(ModelGuided):
    """See above; children are made by `neighbor` and `cross` of the space."""

    name: ClassVar[str] = "evolutionary"

    def explore(self, effort: int) -> None:
        """Run one evolution; the effort is spread over its generations."""
        size = max(4, min(POPULATION, effort // (GENERATIONS + 1)))
        breeding = Breeding(self.space.neighbor, self.space.cross, CROSSING)
        evolve(
            self._population(size),
            breeding,
            self.foresight.costs,
            size=size,
            generations=GENERATIONS,
            key=_key,
            seed=self.random("evolve").getrandbits(32),
            limits=SearchLimits(evaluations=effort),
        )

    def _population(self, size: int) -> Iterable[Candidate]:
        measured = self.best(int(MEASURED * size) or 1)
        survivors = list(islice(self.foresight.ranked(), int(SURVIVING * size)))
        missing = max(1, size - len(measured) - len(survivors))
        near = self._neighbors(measured, int(NEAR * missing))
        return [*measured, *survivors, *near, *self.drawn(missing - len(near))]

    def _neighbors(self, measured: list[Candidate], count: int) -> list[Candidate]:
        """Candidates that differ from measured ones in a few parameters."""
        random = self.random("near")
        found = [random.choice(measured) for _ in range(count if measured else 0)]
        for _ in range(CHANGES):
            found = [
                self.space.neighbor(c, random) if random.random() < 0.5 else c
                for c in found
            ]
        return found


def _key(candidate: Candidate) -> str:
    return candidate.key
