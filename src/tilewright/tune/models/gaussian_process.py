"""A model that learns without any other package: what a prior gets wrong is alike nearby."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from itertools import groupby
from pathlib import Path
from typing import Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.loops.nodes import Kernel
from tilewright.tune.base import Prediction, Sample
from tilewright.tune.features.fast import Fast
from tilewright.tune.kriging import Interpolation, places
from tilewright.tune.models import stored
from tilewright.tune.models.learned import Prior
from tilewright.tune.models.objectives import LOG_SECONDS
from tilewright.tune.models.programs import Examples, ProgramRows, Rows, numbered
from tilewright.tune.models.stored import State


@dataclass(eq=False, slots=True)
class _Seen:
    """The samples of a task: the features of each, [1, columns], its seconds, the prior's cost and
    its machine. error: of the prior, on the last sample's machine and between programs; None if all
    have failed."""

    rows: list[Rows] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    known: list[float] = field(default_factory=list)
    machines: list[str] = field(default_factory=list)
    error: Interpolation | None = None

    def fit(self) -> None:
        """Interpolate the error. Machines differ by a factor: only its changes are alike."""
        group = numbered(self.machines)
        seconds, known = np.array(self.seconds), np.array(self.known)
        whole = Examples(ProgramRows.of(self.rows), group, seconds, known)
        examples = whole.useful()
        if not len(examples):
            return
        error = examples.costs() - examples.prior
        size = np.bincount(examples.group)
        sums = np.bincount(examples.group, error)
        offset = np.divide(sums, size, out=np.zeros(len(sums)), where=size > 0)
        error += offset[examples.group[-1]] - offset[examples.group]
        self.error = Interpolation.of(places(examples.programs.rows), error)


class GaussianProcess:
    """A CostModel: a prior's logarithms of seconds, and its error on programs of the same task
    interpolated between those measured (`kriging`).

    The spread grows with the distance from them; before the first it is the prior's. Failures count
    as in `Examples`. `update` equals `fit` on everything seen so far, also after `load`.
    """

    name = "gaussian-process"
    unit = LOG_SECONDS
    absolute = True

    def __init__(self, features: Fast, prior: Prior) -> None:
        """Raises InputError for a prior of another unit."""
        if prior.unit != LOG_SECONDS:
            raise InputError(
                f"{prior.name} predicts {prior.unit}, but {self.name} {LOG_SECONDS}",
                where="prior of a cost model",
                hint="use one of logarithms of seconds",
            )
        self._features: Final = features
        self._prior: Final = prior
        self._tasks: dict[str, _Seen] = {}

    def fit(self, samples: Sequence[Sample]) -> None:
        """Train on these samples only."""
        self._tasks.clear()
        self.update(samples)

    def update(self, samples: Sequence[Sample]) -> None:
        """Train on these samples in addition; takes time cubic in the samples of their tasks."""
        for task, group in groupby(samples, key=lambda s: s.task):
            fresh = list(group)
            kernels = [s.kernel for s in fresh]
            seen = self._tasks.setdefault(task, _Seen())
            seen.rows += [self._features.extract(k) for k in kernels]
            seen.seconds += [s.seconds for s in fresh]
            seen.known += self._prior.predict(task, kernels).cost.tolist()
            seen.machines += [s.machine for s in fresh]
        for task in {s.task for s in samples}:
            self._tasks[task].fit()

    def predict(self, task: str, kernels: Sequence[Kernel]) -> Prediction:
        """Predict log seconds."""
        known = self._prior.predict(task, kernels)
        seen = self._tasks.get(task)
        if seen is None or seen.error is None or not kernels:
            return known
        error, spread = seen.error.at(places(self._features.extract_all(kernels)))
        return Prediction(known.cost + error, spread)

    def save(self, path: Path) -> None:
        """Write the samples' features and times, and the prior, to one text file."""
        stored.write(path, self.name, self.state())

    def load(self, path: Path) -> None:
        """Read a file written by `save`. Raises InputError for any other file."""
        self.restore(stored.read(path, self.name))

    def state(self) -> State:
        """The samples and the prior."""
        tasks = {
            task: {
                "rows": np.concatenate(seen.rows),
                "seconds": np.array(seen.seconds, np.float64),
                "known": np.array(seen.known, np.float64),
                "machines": seen.machines,
            }
            for task, seen in self._tasks.items()
        }
        version = self._features.version
        return {"features": version, "prior": self._prior.state(), "tasks": tasks}

    def restore(self, state: State) -> None:
        """Restore a result of `state`. Raises InputError if the features have another version."""
        if state["features"] != self._features.version:
            raise InputError(
                f"the cost model has version {state['features']} of the features "
                f"{self._features.name!r}, not {self._features.version}",
                hint="fit it again and save it",
            )
        self._prior.restore(state["prior"])
        self._tasks.clear()
        for task, kept in state["tasks"].items():
            seen = self._tasks[task] = _Seen(
                list(kept["rows"][:, None]),
                kept["seconds"].tolist(),
                kept["known"].tolist(),
                list(kept["machines"]),
            )
            seen.fit()
