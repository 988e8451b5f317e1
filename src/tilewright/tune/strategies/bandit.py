"""Techniques that need no model, alone or chosen by a bandit: for spaces with any cost.

Those over decisions (pattern, differential, torczon) take part where a task's programs can be made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Final

from tilewright.base.errors import InputError
from tilewright.search import BOXED, MOVING, Bandit, Technique
from tilewright.tune.base import Candidate, Trial
from tilewright.tune.strategies.prefixes import Prefixes
from tilewright.tune.strategies.proposer import Proposer, Setup

TECHNIQUES: Final = (*MOVING, *BOXED)


class ByBandit(Proposer):
    """All techniques that the space permits, or those that are named."""

    name: ClassVar[str] = "bandit"
    techniques: ClassVar[tuple[str, ...]] = TECHNIQUES

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        made = list(self._made(setup))
        if not made:
            raise InputError(
                f"the technique {self.name} needs a task whose programs can be made",
                where="tune",
                hint=f"take one of {', '.join(MOVING)}",
            )
        self.bandit: Final = Bandit(made, key=_key, seed=setup.seed)

    def _made(self, setup: Setup) -> Iterator[Technique[Candidate]]:
        box = None
        if setup.foresight is not None:
            programs = setup.foresight.programs
            box = Prefixes(programs, setup.space, setup.seeds, setup.seed).box()
        for name in self.techniques:
            if name in MOVING:
                yield MOVING[name](setup.space)
            elif box is not None:
                yield BOXED[name](box)

    def search(self, count: int) -> Iterable[Candidate]:
        """What the techniques ask for now."""
        while (asked := self.bandit.ask()) is not None:
            yield asked

    def tell(self, trials: Sequence[Trial]) -> None:
        """As always; the techniques hear of all."""
        super().tell(trials)
        for trial in trials:
            self.bandit.tell(trial.candidate, trial.measurement.seconds)


def only(name: str) -> type[ByBandit]:
    """The strategy of one of TECHNIQUES."""
    return type(name, (ByBandit,), {"name": name, "techniques": (name,)})


def _key(candidate: Candidate) -> str:
    return candidate.key
