"""What all strategies have in common: the default first, then seeds, nothing twice, all at last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from math import inf
from random import Random
from typing import ClassVar, Final

from tilewright.base.errors import InputError
from tilewright.tune.base import Candidate, Space, Trial
from tilewright.tune.strategies.foresight import Foresight

# By chance per candidate that is wanted, before all are looked at in order.
DRAWS: Final = 16
BY_CHANCE: Final = 0.05  # of a batch, so that a model also sees what it does not expect
REFUSALS: Final = 512  # in a row, after which a strategy is through
EFFORT: Final = 8  # schedules that a search may make per candidate that it proposes


@dataclass(frozen=True, eq=False, slots=True)
class Setup:
    """What a strategy works with.

    foresight: what a model says; only strategies that are `guided` need it. seeds: measured right
    after the default. effort: as EFFORT.
    """

    space: Space
    foresight: Foresight | None = None
    seeds: Sequence[Candidate] = field(default=())
    seed: int = 0
    effort: int = EFFORT


class Proposer:
    """A strategy, but for where it searches: `search` yields candidates, the best first.

    Where that yields too few, others are drawn by chance, and at last all are gone through in their
    order, so that a finite space is exhausted.
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
        """At most `count` candidates that were not proposed before, nor told of."""
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
        """Remember what was measured; it is not proposed again."""
        for trial in trials:
            candidate = trial.candidate
            self._proposed.add(candidate.key)
            self.told[candidate.key] = candidate
            self.seconds[candidate.key] = trial.measurement.seconds

    def search(self, count: int) -> Iterable[Candidate]:
        """Candidates that are worth a look, the best first; some may be known."""
        return ()

    def possible(self, candidate: Candidate) -> bool:
        """Whether a candidate is worth proposing at all."""
        return True

    def drawn(self, count: int) -> Iterator[Candidate]:
        """Candidates by chance."""
        random = self.random("drawn")
        return (self.space.sample(random) for _ in range(count))

    def random(self, purpose: str) -> Random:
        """A generator of this round: equal seeds and answers give equal proposals."""
        return Random(f"{self.setup.seed}:{self.rounds}:{purpose}")

    def best(self, count: int) -> list[Candidate]:
        """Those that were measured, fastest first, without those that failed."""
        ranked = sorted(self.seconds.items(), key=lambda item: item[1])
        return [self.told[key] for key, s in ranked[:count] if s < inf]

    def unseen(self, candidates: Iterable[Candidate]) -> Iterator[Candidate]:
        """Those that were neither proposed nor told of, and are possible.

        Where so many in a row are impossible, the others are taken to be so too.
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
        """A candidate is proposed."""


class Guided(Proposer):
    """A strategy that a model guides: candidates that are refused, or the same program, are left
    out, and of every batch some are drawn by chance."""

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
        """As always, and the model is taken to have learned."""
        super().tell(trials)
        self.foresight.learned()

    def search(self, count: int) -> Iterator[Candidate]:
        """Some by chance, then what the model expects to be fastest of all that was looked at."""
        self.explore(self.effort * count)
        few = int(BY_CHANCE * count + self.random("few").random())
        yield from islice(self.unseen(self.chosen(count)), count - few)
        yield from islice(self.unseen(self.drawn(DRAWS * few)), few)

    def explore(self, effort: int) -> None:
        """Have the foresight cost up to so many candidates."""
        raise NotImplementedError

    def chosen(self, count: int) -> Iterable[Candidate]:
        """Those that were costed, in the order in which they are worth measuring."""
        return self.foresight.ranked()

    def possible(self, candidate: Candidate) -> bool:
        """Not refused, and a program that was not proposed under another name."""
        program = self.foresight.programs.find(candidate)
        return program is not None and program.identity not in self._programs

    def accept(self, candidate: Candidate) -> None:
        """Its program is not proposed again."""
        program = self.foresight.programs.find(candidate)
        if program is not None:
            self._programs.add(program.identity)
