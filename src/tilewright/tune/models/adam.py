"""Adam (Kingma and Ba, 2015) over named arrays, and the training loop of the networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from tilewright.base.dataclass import dataclass

Array = np.ndarray[Any, np.dtype[np.float64]]
Arrays = dict[str, Array]


@dataclass(slots=True)
class AdamSteps:
    """Gradient descent. rate: the step size; first, second: decay rates of the moments.

    norm: longer gradients are clipped to it, so that one bad batch cannot undo the training.
    """

    rate: float = 3e-3
    first: float = 0.9
    second: float = 0.999
    tiny: float = 1e-5
    norm: float = 5.0
    _moments: dict[str, tuple[Array, Array]] = field(default_factory=dict)
    _steps: int = 0

    def step(self, values: Arrays, gradient: Mapping[str, Array]) -> None:
        """Update the values in place."""
        self._steps += 1
        length = float(np.sqrt(sum(np.sum(g * g) for g in gradient.values())))
        scale = min(1.0, self.norm / length) if length else 1.0
        for name, whole in gradient.items():
            g = whole * scale
            zeros = (np.zeros_like(g), np.zeros_like(g))
            mean, square = self._moments.get(name, zeros)
            mean = self.first * mean + (1 - self.first) * g
            square = self.second * square + (1 - self.second) * g * g
            self._moments[name] = mean, square
            unbiased = mean / (1 - self.first**self._steps)
            size = np.sqrt(square / (1 - self.second**self._steps))
            values[name] -= self.rate * unbiased / (size + self.tiny)


def train(
    values: Arrays,
    gradient: Callable[[int], Mapping[str, Array]],
    steps: int,
    rate: float,
) -> None:
    """Run Adam with a cosine schedule down to a tenth of the rate. gradient: of a step's batch."""
    adam = AdamSteps(rate)
    for n in range(steps):
        adam.rate = rate * (0.1 + 0.9 * (1 + np.cos(np.pi * n / steps)) / 2)
        adam.step(values, gradient(n))
