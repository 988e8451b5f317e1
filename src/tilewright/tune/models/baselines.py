"""Models to compare with: one that knows nothing, and one that guesses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tilewright.loops.nodes import Kernel
from tilewright.tune.base import Prediction, Sample
from tilewright.tune.models import stored
from tilewright.tune.models.objectives import ORDER


class BlackBox:
    """A CostModel without a model: all programs cost the same, and nothing is known of them.

    A search with it has only what it measured, as a genetic tuner without predictions.
    """

    name = "black box"
    unit = ORDER
    absolute = False

    def fit(self, samples: Sequence[Sample]) -> None:
        """Learn nothing."""

    def update(self, samples: Sequence[Sample]) -> None:
        """Learn nothing."""

    def predict(self, task: str, kernels: Sequence[Kernel]) -> Prediction:
        """0 for each, of infinite spread."""
        size = len(kernels)
        return Prediction(np.zeros(size), np.full(size, np.inf))

    def save(self, path: Path) -> None:
        """Write that there is nothing."""
        stored.write(path, self.name, {})

    def load(self, path: Path) -> None:
        """Read what `save` wrote. Raises InputError for another file."""
        stored.read(path, self.name)


class Guess(BlackBox):
    """A CostModel that draws costs at random: what every other one must beat."""

    name = "random"

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)

    def predict(self, task: str, kernels: Sequence[Kernel]) -> Prediction:
        """Even between 0 and 1, of infinite spread; other numbers each time."""
        size = len(kernels)
        return Prediction(self._random.random(size), np.full(size, np.inf))
