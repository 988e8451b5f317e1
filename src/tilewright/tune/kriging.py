"""Kriging: what points tell of others, the more the nearer they are.

A Gaussian process whose correlation falls exponentially with the distance (Rasmussen and Williams,
Gaussian Processes for Machine Learning, 2006, sections 2.2 and 4.2). Points are rows of
coordinates, of kernels those of `places`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.tune.base import Vector
from tilewright.tune.features.base import LOG
from tilewright.tune.features.fast_columns import COLUMNS, SHARE

Points = np.ndarray[Any, np.dtype[np.float64]]

LENGTH: Final = 8.0  # the distance at which the correlation is 1/e
NOISE: Final = 1e-3  # the variance of a measurement, as a part of that of the points
# How far a program moves when a column of `fast` changes by 1. The others repeat these.
WEIGHTS: Final = {LOG: 1.0, SHARE: 3.0}
_SCALE: Final = np.array([WEIGHTS.get(c.unit, 0.0) for c in COLUMNS])


def places(rows: np.ndarray[Any, Any]) -> Points:
    """The points of programs from their features `fast`: [programs, columns] to the same."""
    found: Points = rows[:, : len(_SCALE)] * _SCALE
    return found


def distances(a: Points, b: Points) -> Points:
    """Between each of some points and each of others: [a, b]."""
    squares = np.square(a).sum(axis=1)[:, None] + np.square(b).sum(axis=1)
    found: Points = np.sqrt(np.maximum(squares - 2 * a @ b.T, 0.0))
    return found


def correlations(a: Points, b: Points, length: float = LENGTH) -> Points:
    """Between each of some points and each of others: [a, b]."""
    found: Points = np.exp(-distances(a, b) / length)
    return found


def root(points: Points, length: float = LENGTH) -> Points:
    """The Cholesky factor of the points' correlations with noise: [points, points]."""
    noise = NOISE * np.eye(len(points))
    whole = correlations(points, points, length) + noise
    return np.asarray(np.linalg.cholesky(whole), np.float64)


class RemainingVariance:
    """How much of the variance of points is left after measuring others, or some of them.

    left: [points], from 1 for a point far from all that is known to 0 for a known one.
    """

    def __init__(self, points: Points, known: Points) -> None:
        self._points: Final = points
        seen = correlations(known, points)
        self._rows = np.linalg.solve(root(known), seen) if len(known) else seen
        self.left: Vector = 1.0 - np.square(self._rows).sum(axis=0)

    def know(self, point: int) -> None:
        """One of the points is measured as well. Takes time linear in the points and the known."""
        seen = correlations(self._points[[point]], self._points)[0]
        own = self._rows[:, point]
        row = (seen - own @ self._rows) / np.sqrt(1.0 + NOISE - own @ own)
        self._rows = np.vstack([self._rows, row])
        self.left -= np.square(row)


@dataclass(frozen=True, eq=False, slots=True)
class Interpolation:
    """Values between measured points. mean: far from all. length: as LENGTH. deviation: the
    standard deviation of values far from all. inverse: of the correlations' root."""

    points: Points
    mean: float
    length: float
    deviation: float
    inverse: Points
    weights: Vector

    @staticmethod
    def of(points: Points, values: Vector) -> Interpolation:
        """The likeliest for some values, [points], of at least one point."""
        mean = float(values.mean())
        tried = [_fitted(points, values - mean, length) for length in LENGTHS]
        _, length, deviation, factor, solved = max(tried, key=lambda found: found[0])
        inverse = np.asarray(np.linalg.inv(factor), np.float64)
        return Interpolation(
            points, mean, length, deviation, inverse, inverse.T @ solved
        )

    def at(self, points: Points) -> tuple[Vector, Vector]:
        """The expected values of points and their standard deviations: [points] each."""
        seen = correlations(points, self.points, self.length)
        known = np.square(self.inverse @ seen.T).sum(axis=0)
        left = np.sqrt(np.maximum(1.0 - known, 0.0))
        return self.mean + seen @ self.weights, self.deviation * left


# The lengths to choose from, and what is believed before measuring: the standard deviation of
# logarithms of seconds, and as how many values that counts.
LENGTHS: Final = (2.0, 4.0, 8.0, 16.0, 32.0)
USUAL: Final = 0.3
BELIEF: Final = 4.0


def _fitted(
    points: Points, values: Vector, length: float
) -> tuple[float, float, float, Points, Vector]:
    """The log likelihood of a length, the length, the deviation, the factor and its solution."""
    factor = root(points, length)
    solved = np.asarray(np.linalg.solve(factor, values), np.float64)
    count = len(values) + BELIEF
    variance = (solved @ solved + BELIEF * USUAL**2) / count
    likely = -0.5 * count * np.log(variance) - np.log(np.diag(factor)).sum()
    return float(likely), length, float(np.sqrt(variance)), factor, solved
