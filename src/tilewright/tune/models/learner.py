"""Learners: models of feature rows, and the ensemble that estimates their uncertainty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from tilewright.base.errors import InputError
from tilewright.tune.base import Prediction, Vector
from tilewright.tune.models.programs import Examples, Numbers, ProgramRows
from tilewright.tune.models.stored import State

SHARE = 0.8  # of the programs of each task that a member of an ensemble is trained on


class Learner(Protocol):
    """A trainable model; `unit` is the unit of its costs (see `objectives`)."""

    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> str: ...
    def fit(self, examples: Examples) -> None:
        """Train on these examples only; there is at least one."""
        ...

    def costs(self, programs: ProgramRows) -> Vector:
        """The costs of programs relative to their prior: [programs]."""
        ...

    def state(self) -> State:
        """The trained state."""
        ...

    def restore(self, state: State) -> None:
        """Restore a result of `state`. Raises InputError for the state of another learner."""
        ...


class Ensemble:
    """Several learners of one kind, each trained on a random part of the programs.

    Their mean is the cost, and their standard deviation the spread. make: from a seed.
    """

    def __init__(
        self, make: Callable[[int], Learner], members: int = 4, seed: int = 0
    ) -> None:
        self._seeds = range(seed, seed + members)
        self._members = [make(s) for s in self._seeds]

    @property
    def name(self) -> str:
        """The members' name, and how many there are."""
        return f"{len(self._members)} x {self._members[0].name}"

    @property
    def unit(self) -> str:
        """The unit of its costs."""
        return self._members[0].unit

    def fit(self, examples: Examples) -> None:
        """Train each member on its part."""
        for seed, member in zip(self._seeds, self._members, strict=True):
            chosen = _part(examples.group, np.random.default_rng(seed))
            whole = len(self._members) == 1
            member.fit(examples if whole else examples.take(chosen))

    def predict(self, programs: ProgramRows) -> Prediction:
        """The mean and the standard deviation of the members."""
        if not len(programs):
            return Prediction(np.zeros(0), np.zeros(0))
        found = np.stack([m.costs(programs) for m in self._members])
        return Prediction(found.mean(axis=0), found.std(axis=0))

    def state(self) -> State:
        """The states of the members."""
        return {"members": [m.state() for m in self._members]}

    def restore(self, state: State) -> None:
        """Restore a result of `state`."""
        states = state["members"]
        if len(states) != len(self._members):
            raise InputError(
                f"the cost model has {len(states)} members, not {len(self._members)}",
                hint="load it into an ensemble of as many",
            )
        for member, kept in zip(self._members, states, strict=True):
            member.restore(kept)


def _part(group: Numbers, random: np.random.Generator) -> Numbers:
    """SHARE of the programs of each task, at least one of each, in order."""
    drawn = random.random(len(group))
    order = np.lexsort((drawn, group))
    first = np.searchsorted(group[order], group[order], side="left")
    rank = np.arange(len(group)) - first
    size = np.bincount(group)[group[order]]
    chosen = order[rank < np.ceil(SHARE * size)]
    return np.sort(chosen)
