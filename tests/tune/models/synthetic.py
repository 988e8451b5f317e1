"""Programs whose cost is a known function of their rows."""

from __future__ import annotations

import numpy as np

from tilewright.tune.models.programs import Examples, ProgramRows, Rows

COLUMNS = 5


def rows(random: np.random.Generator, most: int = 1) -> Rows:
    """One to `most` rows of numbers between 0 and 1."""
    return random.random((random.integers(1, most + 1), COLUMNS)).astype(np.float32)


def seconds(matrix: Rows) -> float:
    """What a program takes: its rows together, each by its first two columns."""
    return float(np.sum(1e-4 * np.exp(2 * matrix[:, 0]) * (1 + (matrix[:, 1] > 0.5))))


def examples(
    count: int = 300, groups: int = 3, most: int = 1, seed: int = 0
) -> Examples:
    """Programs of several tasks, one after another; those of a task have a speed in common."""
    random = np.random.default_rng(seed)
    matrices = [rows(random, most) for _ in range(count)]
    group = np.arange(count) % groups
    speed = random.random(groups) * 10 + 0.1
    taken = np.array([seconds(m) for m in matrices]) * speed[group]
    return Examples(ProgramRows.of(matrices), group, taken, np.zeros(count))


def accuracy(cost: np.ndarray, of: Examples) -> float:
    """The share of pairs of one task in the right order."""
    one, other = np.triu_indices(len(of), 1)
    alike = of.group[one] == of.group[other]
    one, other = one[alike], other[alike]
    slower = of.seconds[one] > of.seconds[other]
    return float(np.mean((cost[one] > cost[other]) == slower))
