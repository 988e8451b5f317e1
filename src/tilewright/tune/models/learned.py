"""A cost model composed of features and a learner, with an optional prior model."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from tilewright.base.errors import InputError
from tilewright.loops.nodes import Kernel
from tilewright.tune.base import Prediction, Sample, Vector
from tilewright.tune.models import stored
from tilewright.tune.models.learner import Ensemble
from tilewright.tune.models.objectives import LOG_SECONDS, ORDER, THROUGHPUT
from tilewright.tune.models.programs import (
    Examples,
    FeatureExtractor,
    ProgramRows,
    Rows,
    numbered,
)
from tilewright.tune.models.stored import State

# The units that a prior may have, by the learner's unit.
PRIORS: Final[Mapping[str, frozenset[str]]] = {
    ORDER: frozenset({ORDER, LOG_SECONDS, THROUGHPUT}),
    LOG_SECONDS: frozenset({LOG_SECONDS}),
    THROUGHPUT: frozenset({THROUGHPUT}),
}


class Prior(Protocol):
    """An already trained model; `unit` is the unit of its costs."""

    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> str: ...
    def predict(self, task: str, kernels: Sequence[Kernel]) -> Prediction: ...
    def state(self) -> State: ...
    def restore(self, state: State) -> None: ...


def always(samples: int) -> float:
    """A prior that keeps its full weight."""
    return 1.0


class LearnedModel:
    """A CostModel: a learner over the rows that a feature set extracts from kernels.

    `update` equals `fit` on everything seen so far. Failures count as in `Examples`: slower than
    everything else in their task. prior: the learner fits the residual; the prior's weight is
    `fade` of the task's number of samples. others: feature sets by machine, for samples of other
    machines (a feature set may contain a machine's cache sizes).

    A file stores the trained state without its samples: when a loaded model is updated, the new
    samples train a learner on its residuals.
    """

    def __init__(
        self,
        features: FeatureExtractor,
        learner: Ensemble,
        prior: Prior | None = None,
        fade: Callable[[int], float] = always,
        others: Mapping[str, FeatureExtractor] | None = None,
    ) -> None:
        if prior is not None and prior.unit not in PRIORS[learner.unit]:
            raise InputError(
                f"{prior.name} predicts {prior.unit}, but {learner.name} {learner.unit}",
                where="prior of a cost model",
                hint="use a ranking learner, which accepts any prior",
            )
        self._features = features
        self._others = dict(others or {})
        self._fresh = copy.deepcopy(learner)
        self._learner = learner
        self._prior = prior
        self._fade = fade
        self._loaded: LearnedModel | None = (
            None  # the model as loaded, if it is updated
        )
        self._samples: list[Sample] = []
        self._rows: list[Rows] = []
        self._known: list[float] = []  # the prior's cost of each sample, unweighted
        self._counts: Counter[str] = Counter()
        self._learned = False
        known = "" if prior is None else f" after {prior.name}"
        self.name = f"{learner.name} of {features.name}{known}"
        self.unit = learner.unit
        self.absolute = learner.unit == LOG_SECONDS

    def fit(self, samples: Sequence[Sample]) -> None:
        """Train on these samples only; without a success among them the model stays untrained."""
        self._forget()
        self._learn(samples)

    def update(self, samples: Sequence[Sample]) -> None:
        """Train on these samples in addition."""
        if self._learned and not self._samples:
            before = copy.copy(self)
            before._counts = self._counts.copy()
            self._learner = copy.deepcopy(self._fresh)
            self._loaded = before
        self._learn(samples)

    def predict(self, task: str, kernels: Sequence[Kernel]) -> Prediction:
        """Predict the cost of a task's programs; with infinite spread if untrained."""
        if not self._learned:
            return self._known_before(task, kernels)
        programs = ProgramRows.of([self._features.extract(k) for k in kernels])
        rest = self._learner.predict(programs)
        weight = self._weight(task)
        if not weight or (self._loaded is None and self._prior is None):
            return rest
        known = self._known_before(task, kernels)
        spread = np.hypot(rest.spread, weight * known.spread)
        return Prediction(rest.cost + weight * known.cost, spread)

    def save(self, path: Path) -> None:
        """Write the trained state, including the prior's, to one text file."""
        stored.write(path, self.name, self.state())

    def load(self, path: Path) -> None:
        """Read a file written by `save`. Raises InputError for any other file."""
        self.restore(stored.read(path, self.name))

    def state(self) -> State:
        """The trained state."""
        return {
            "features": self._features.version,
            "learner": self._learner.state() if self._learned else None,
            "counts": dict(self._counts),
            "prior": None if self._prior is None else self._prior.state(),
            "loaded": None if self._loaded is None else self._loaded.state(),
        }

    def restore(self, state: State) -> None:
        """Restore a result of `state`. Raises InputError if the features have another version."""
        if state["features"] != self._features.version:
            raise InputError(
                f"the cost model has version {state['features']} of the features "
                f"{self._features.name!r}, not {self._features.version}",
                hint="fit it again and save it",
            )
        self._forget()
        if self._prior is not None:
            self._prior.restore(state["prior"])
        if state["learner"] is not None:
            self._learner = copy.deepcopy(self._fresh)
            self._learner.restore(state["learner"])
            self._learned = True
        if state["loaded"] is not None:
            self._loaded = LearnedModel(
                self._features, copy.deepcopy(self._fresh), self._prior, self._fade
            )
            self._loaded.restore(state["loaded"])
        self._counts.update(state["counts"])

    def _forget(self) -> None:
        self._samples, self._rows, self._known = [], [], []
        self._counts = Counter()
        self._learned = False
        self._loaded = None

    def _learn(self, samples: Sequence[Sample]) -> None:
        for s in samples:
            features = self._others.get(s.machine, self._features)
            self._samples.append(s)
            self._rows.append(features.extract(s.kernel))
            self._counts[s.task] += 1
        for task, group in groupby(samples, key=lambda s: s.task):
            known = self._known_before(task, [s.kernel for s in group])
            self._known += known.cost.tolist()
        examples = self._examples().useful()
        if len(examples):
            self._learner.fit(examples)
            self._learned = True

    def _known_before(self, task: str, kernels: Sequence[Kernel]) -> Prediction:
        """The prediction without the learner, unweighted: of the loaded model, or of the prior."""
        known = self._prior if self._loaded is None else self._loaded
        if known is None:
            size = len(kernels)
            return Prediction(np.zeros(size), np.full(size, np.inf))
        return known.predict(task, kernels)

    def _weight(self, task: str) -> float:
        """The weight of the prior, or of the loaded model."""
        return self._fade(self._counts[task]) if self._loaded is None else 1.0

    def _examples(self) -> Examples:
        weights = [self._weight(s.task) for s in self._samples]
        known: Vector = np.array(self._known, np.float64)
        tasks = [f"{s.machine} {s.task}" for s in self._samples]
        return Examples(
            ProgramRows.of(self._rows),
            numbered(tasks),
            np.array([s.seconds for s in self._samples], np.float64),
            known * np.array(weights, np.float64),
        )
