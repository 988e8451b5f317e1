"""Baselines to compare with: one that knows nothing, and one that guesses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tilewright.loops.nodes import Kernel
from tilewright.tune.base import Prediction, Sample
from tilewright.tune.models import stored
from tilewright.tune.models.objectives import ORDER


class BlackBox:
    """A CostModel without predictions: all programs cost the same, with infinite spread.

    A search with it only has its measurements, like a genetic tuner without a model.
    """

    name = "black box"
    unit = ORDER
    absolute = False

    def fit(self, samples: Sequence[Sample]) -> None:
        """Learn nothing."""

    def update(self, samples: Sequence[Sample]) -> None:
        """Learn nothing."""

    def predict(self, task: str, kernels: Sequence[Kernel]) -> Prediction:
        """Predict 0 for each, with infinite spread."""
        size = len(kernels)
        return Prediction(np.zeros(size), np.full(size, np.inf))

    def save(self, path: Path) -> None:
        """Write an empty state."""
        stored.write(path, self.name, {})

    def load(self, path: Path) -> None:
        """Read a file written by `save`. Raises InputError for any other file."""
        stored.read(path, self.name)


class RandomGuess(BlackBox):
    """A CostModel that draws random costs: the baseline that every other one must beat."""

    name = "random"

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)

    def predict(self, task: str, kernels: Sequence[Kernel]) -> Prediction:
        """Predict uniform random numbers from 0 to 1, new in each call, with infinite spread."""
        size = len(kernels)
        return Prediction(self._random.random(size), np.full(size, np.inf))
