"""Common to all strategies: the default first, then seeds, no duplicates, finally exhaustive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from itertools import chain, islice
from math import inf
from random import Random
from typing import ClassVar, Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.tune.base import Candidate, Space, Trial
from tilewright.tune.strategies.foresight import ConfidenceBounds

# Random draws per wanted candidate, before falling back to enumeration.
DRAWS: Final = 16
# Share of a batch, so that the model also sees what it does not expect.
BY_CHANCE: Final = 0.05
LEEWAY: Final = 16  # a batch is chosen from this many times its size
REFUSALS: Final = 512  # consecutive rejections that exhaust a strategy
EFFORT: Final = 8  # schedules that a search may make per proposed candidate


@dataclass(frozen=True, eq=False, slots=True)
class Setup:
    """The inputs of a strategy.

    foresight: a model's predictions; required by `guided` strategies only. seeds: measured right
    after the default. effort: as EFFORT.
    """

    space: Space
    foresight: ConfidenceBounds | None = None
    seeds: Sequence[Candidate] = field(default=())
    seed: int = 0
    effort: int = EFFORT


class Proposer:
    """A strategy without its search: subclasses define `search`, which yields the best first.

    If that yields too few, random ones follow, and finally all candidates in order, so that a
    finite space is exhausted.
    """

    name: ClassVar[str]
    guided: ClassVar[bool] = False

    def __init__(self, setup: Setup) -> None:
        self.setup: Final = setup
        self.space: Final = setup.space
        self.effort = setup.effort
        self.rounds = 0
        self.seconds: dict[str, float] = {}
        self.told: dict[str, Candidate] = {}
        self._proposed: set[str] = set()
        self._first: Final = chain([setup.space.default()], setup.seeds)
        self._rest: Iterator[Candidate] | None = None

    def propose(self, count: int) -> list[Candidate]:
        """At most `count` candidates that were neither proposed nor told before."""
        batch = self._fresh(self._first, count)
        if len(batch) < count:
            self.rounds += 1
            batch += self._fresh(self.search(count - len(batch)), count - len(batch))
        if len(batch) < count:
            drawn = self.drawn(DRAWS * (count - len(batch)))
            batch += self._fresh(drawn, count - len(batch))
        if len(batch) < count:
            self._rest = self._rest or iter(self.space)
            batch += self._fresh(self._rest, count - len(batch))
        return batch

    def tell(self, trials: Sequence[Trial]) -> None:
        """Remember measured candidates; they are not proposed again."""
        for trial in trials:
            candidate = trial.candidate
            self._proposed.add(candidate.key)
            self.told[candidate.key] = candidate
            self.seconds[candidate.key] = trial.measurement.seconds

    def search(self, count: int) -> Iterable[Candidate]:
        """Candidates worth trying, best first; some may be known already."""
        return ()

    def possible(self, candidate: Candidate) -> bool:
        """Whether a candidate is worth proposing at all."""
        return True

    def drawn(self, count: int) -> Iterator[Candidate]:
        """Random candidates."""
        random = self.random("drawn")
        return (self.space.sample(random) for _ in range(count))

    def random(self, purpose: str) -> Random:
        """The random generator of this round: equal seeds and results lead to equal proposals."""
        return Random(f"{self.setup.seed}:{self.rounds}:{purpose}")

    def best(self, count: int) -> list[Candidate]:
        """The fastest measured candidates in order, without failures."""
        ranked = sorted(self.seconds.items(), key=lambda item: item[1])
        return [self.told[key] for key, s in ranked[:count] if s < inf]

    def unseen(self, candidates: Iterable[Candidate]) -> Iterator[Candidate]:
        """The candidates that were neither proposed nor told, and are possible.

        Stops after REFUSALS impossible ones in a row.
        """
        vain = 0
        for candidate in candidates:
            if candidate.key in self._proposed:
                continue
            if self.possible(candidate):
                vain = 0
                yield candidate
            else:
                vain += 1
            if vain >= REFUSALS:
                return

    def _fresh(self, candidates: Iterable[Candidate], count: int) -> list[Candidate]:
        batch = []
        for candidate in islice(self.unseen(candidates), count):
            self._proposed.add(candidate.key)
            self.accept(candidate)
            batch.append(candidate)
        return batch

    def accept(self, candidate: Candidate) -> None:
        """Called when a candidate is proposed."""


class ModelGuided(Proposer):
    """A strategy guided by a model: it skips rejected candidates and duplicate programs, and adds
    some random candidates to every batch."""

    guided = True

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        if setup.foresight is None:
            raise InputError(
                f"the strategy {self.name} needs a task whose programs can be made",
                where="tune",
                hint="take bandit, random or exhaustive",
            )
        self.foresight: Final = setup.foresight
        self._programs: set[str] = set()

    def tell(self, trials: Sequence[Trial]) -> None:
        """Also notify the foresight that the model has learned."""
        super().tell(trials)
        self.foresight.learned()

    def search(self, count: int) -> Iterator[Candidate]:
        """The predicted fastest of all that were explored, then a few random ones."""
        self.explore(self.effort * count)
        few = int(BY_CHANCE * count + self.random("few").random())
        yield from islice(self.unseen(self.chosen(count)), count - few)
        yield from islice(self.unseen(self.drawn(DRAWS * few)), few)

    def explore(self, effort: int) -> None:
        """Have the foresight predict up to `effort` candidates."""
        raise NotImplementedError

    def chosen(self, count: int) -> Iterable[Candidate]:
        """The costed candidates, in the order to measure them."""
        ranked = self.unseen(self.foresight.ranked())
        pool = list(islice(ranked, LEEWAY * count))
        yield from self.foresight.apart(pool, self.told.values())
        yield from ranked

    def possible(self, candidate: Candidate) -> bool:
        """Neither rejected, nor a program already proposed under another candidate."""
        program = self.foresight.programs.find(candidate)
        return program is not None and program.identity not in self._programs

    def accept(self, candidate: Candidate) -> None:
        """Remember its program, so that it is not proposed again."""
        program = self.foresight.programs.find(candidate)
        if program is not None:
            self._programs.add(program.identity)
