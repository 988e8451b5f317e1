"""A cost model made of features and a learner, with a model known before as its prior."""

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

# What a prior's costs may be, by what the learner's are.
PRIORS: Final[Mapping[str, frozenset[str]]] = {
    ORDER: frozenset({ORDER, LOG_SECONDS, THROUGHPUT}),
    LOG_SECONDS: frozenset({LOG_SECONDS}),
    THROUGHPUT: frozenset({THROUGHPUT}),
}


class Prior(Protocol):
    """A model that is known already; `unit` says what its costs are."""

    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> str: ...
    def predict(self, task: str, kernels: Sequence[Kernel]) -> Prediction: ...
    def state(self) -> State: ...
    def restore(self, state: State) -> None: ...


def always(samples: int) -> float:
    """A prior that keeps its whole weight."""
    return 1.0


class LearnedModel:
    """A CostModel: a learner over the rows that a feature set reads from kernels.

    `update` is exactly `fit` on everything seen. What failed counts as `Examples` says: slower than
    all else of its task. prior: what is learned is the rest of it; weighted by `fade` of the number
    of samples of the task. others: the feature sets of machines whose samples are not read by
    `features` (a set may hold the sizes of a machine's caches).

    A file holds what was learned and not from what: a loaded model that is updated learns from the
    new samples what it itself does not explain.
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
                f"{prior.name} gives {prior.unit}, and {learner.name} {learner.unit}",
                where="prior of a cost model",
                hint="take a learner of an order, which accepts each prior",
            )
        self._features = features
        self._others = dict(others or {})
        self._fresh = copy.deepcopy(learner)
        self._learner = learner
        self._prior = prior
        self._fade = fade
        self._loaded: LearnedModel | None = (
            None  # what a loaded model was, if it learns on
        )
        self._samples: list[Sample] = []
        self._rows: list[Rows] = []
        self._known: list[float] = []  # what was known of each before, unweighted
        self._counts: Counter[str] = Counter()
        self._learned = False
        known = "" if prior is None else f" after {prior.name}"
        self.name = f"{learner.name} of {features.name}{known}"
        self.unit = learner.unit
        self.absolute = learner.unit == LOG_SECONDS

    def fit(self, samples: Sequence[Sample]) -> None:
        """Learn from these alone; without a success among them nothing is known."""
        self._forget()
        self._learn(samples)

    def update(self, samples: Sequence[Sample]) -> None:
        """Learn from these as well."""
        if self._learned and not self._samples:
            before = copy.copy(self)
            before._counts = self._counts.copy()
            self._learner = copy.deepcopy(self._fresh)
            self._loaded = before
        self._learn(samples)

    def predict(self, task: str, kernels: Sequence[Kernel]) -> Prediction:
        """What programs of the task cost; of infinite spread where nothing was learned."""
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
        """Write what was learned, the prior's part included, into one file of text."""
        stored.write(path, self.name, self.state())

    def load(self, path: Path) -> None:
        """Read what `save` wrote. Raises InputError for another file."""
        self.restore(stored.read(path, self.name))

    def state(self) -> State:
        """What was learned."""
        return {
            "features": self._features.version,
            "learner": self._learner.state() if self._learned else None,
            "counts": dict(self._counts),
            "prior": None if self._prior is None else self._prior.state(),
            "loaded": None if self._loaded is None else self._loaded.state(),
        }

    def restore(self, state: State) -> None:
        """Take what `state` gave. Raises InputError for other features than these."""
        if state["features"] != self._features.version:
            raise InputError(
                f"the cost model is of version {state['features']} of the features "
                f"{self._features.name!r}, and they are at {self._features.version}",
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
        """What is known without the learner, unweighted: by what was loaded, or by the prior."""
        known = self._prior if self._loaded is None else self._loaded
        if known is None:
            size = len(kernels)
            return Prediction(np.zeros(size), np.full(size, np.inf))
        return known.predict(task, kernels)

    def _weight(self, task: str) -> float:
        """How much that counts."""
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
