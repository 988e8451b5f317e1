"""A second opinion on programs of which a model has measured few."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from tilewright.base.errors import InputError
from tilewright.loops.nodes import Kernel
from tilewright.tune.base import CostModel, Prediction, Sample
from tilewright.tune.models import stored
from tilewright.tune.models.learned import Prior
from tilewright.tune.models.objectives import LOG_SECONDS
from tilewright.tune.models.stored import State

FEW: Final = 8  # samples of a task from which on its model alone is asked


class Learning(CostModel, Protocol):
    """A cost model whose state can be a part of another's."""

    def state(self) -> State: ...
    def restore(self, state: State) -> None: ...


class Advised:
    """A CostModel: the mean of a learning model's and another's costs while a task has fewer than
    FEW samples, and the learning model's from then on.

    second: predicts logarithms of seconds, as does `own` before it has learned, or an order in
    about their unit. It is used as it is.
    """

    def __init__(self, own: Learning, second: Prior) -> None:
        """Raises InputError for a second model of another unit."""
        if second.unit != LOG_SECONDS:
            raise InputError(
                f"{second.name} predicts {second.unit}, not {LOG_SECONDS}",
                where="second opinion of a cost model",
                hint="use one of logarithms of seconds",
            )
        self.name = f"{own.name} with {second.name}"
        self.absolute = own.absolute
        self._own: Final = own
        self._second: Final = second
        self._counts: Counter[str] = Counter()

    def fit(self, samples: Sequence[Sample]) -> None:
        """Train the learning model on these samples only."""
        self._counts = Counter(s.task for s in samples)
        self._own.fit(samples)

    def update(self, samples: Sequence[Sample]) -> None:
        """Train the learning model on these samples in addition."""
        self._counts.update(s.task for s in samples)
        self._own.update(samples)

    def predict(self, task: str, kernels: Sequence[Kernel]) -> Prediction:
        """Predict the cost of a task's programs; a mean's spread is that of independent ones."""
        own = self._own.predict(task, kernels)
        if self._counts[task] >= FEW:
            return own
        second = self._second.predict(task, kernels)
        spread = np.hypot(own.spread, second.spread) / 2
        return Prediction((own.cost + second.cost) / 2, spread)

    def save(self, path: Path) -> None:
        """Write both models to one text file."""
        stored.write(path, self.name, self.state())

    def load(self, path: Path) -> None:
        """Read a file written by `save`. Raises InputError for any other file."""
        self.restore(stored.read(path, self.name))

    def state(self) -> State:
        """The states of both, and how many samples each task has."""
        counts = dict(self._counts)
        second = self._second.state()
        return {"own": self._own.state(), "second": second, "counts": counts}

    def restore(self, state: State) -> None:
        """Restore a result of `state`."""
        self._own.restore(state["own"])
        self._second.restore(state["second"])
        self._counts = Counter(state["counts"])
