"""Model-free techniques, alone or chosen by a bandit: for spaces with any cost.

Techniques over decisions (pattern, differential, torczon) apply if the decisions are known: in
parameter spaces, and for tasks whose programs can be made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, Final

from tilewright.base.errors import InputError
from tilewright.search import BOXED, MOVING, Bandit, Box, Technique
from tilewright.tune.base import Candidate, Trial
from tilewright.tune.space import ParameterSpace
from tilewright.tune.strategies.prefixes import Prefixes
from tilewright.tune.strategies.proposer import Proposer, Setup

TECHNIQUES: Final = (*MOVING, *BOXED)


class ByBandit(Proposer):
    """All techniques that apply to the space, or only the named ones."""

    name: ClassVar[str] = "bandit"
    techniques: ClassVar[tuple[str, ...]] = TECHNIQUES

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        made = list(self._made(setup))
        if not made:
            raise InputError(
                f"the technique {self.name} needs a space with known decisions",
                where="tune",
                hint=f"take a ParameterSpace, or one of {', '.join(MOVING)}",
            )
        self.bandit: Final = Bandit(made, key=_key, seed=setup.seed)

    def _made(self, setup: Setup) -> Iterator[Technique[Candidate]]:
        box = _box(setup)
        for name in self.techniques:
            if name in MOVING:
                yield MOVING[name](setup.space)
            elif box is not None:
                yield BOXED[name](box)

    def search(self, count: int) -> Iterable[Candidate]:
        """Yield what the techniques ask for now."""
        while (asked := self.bandit.ask()) is not None:
            yield asked

    def tell(self, trials: Sequence[Trial]) -> None:
        """Also report every trial to the techniques."""
        super().tell(trials)
        for trial in trials:
            self.bandit.tell(trial.candidate, trial.measurement.seconds)


def _box(setup: Setup) -> Box[Candidate] | None:
    """The decisions as numbers, if they are known before a candidate is made."""
    if setup.foresight is not None:
        programs = setup.foresight.programs
        return Prefixes(programs, setup.space, setup.seeds, setup.seed).box()
    if isinstance(setup.space, ParameterSpace):
        return box_of(setup.space)
    return None


def box_of(space: ParameterSpace) -> Box[Candidate]:
    """Candidates by one number per parameter, from 0 to 1: the position among its valid values."""

    def at(numbers: Sequence[float]) -> Candidate:
        decided: dict[str, Any] = {}
        found = space.default()
        for place, number in enumerate(numbers):
            node, _ = space.path(found)[place]
            count = len(node.values)
            value = node.values[min(count - 1, int(number * count))]
            decided[node.parameter.name] = value
            found = space.nearest(Candidate("", decided))
        return found

    return Box(len(space.parameters), at, _key)


def only(name: str) -> type[ByBandit]:
    """The strategy that runs one of TECHNIQUES."""
    return type(name, (ByBandit,), {"name": name, "techniques": (name,)})


def _key(candidate: Candidate) -> str:
    return candidate.key
