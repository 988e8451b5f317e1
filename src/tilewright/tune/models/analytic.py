"""The analytic model: a kernel's bound from the machine's parameters, without any sample."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from tilewright.loops.nodes import Kernel
from tilewright.tune.base import Prediction, Sample, Vector
from tilewright.tune.features.fast import Fast
from tilewright.tune.features.fast_columns import COLUMNS
from tilewright.tune.models import stored
from tilewright.tune.models.objectives import LOG_SECONDS
from tilewright.tune.models.programs import Rows
from tilewright.tune.models.stored import State

CYCLES: Final = "least_cycles"  # the column of the slowest resource: log2(1 + cycles)
COLUMN: Final = [c.name for c in COLUMNS].index(CYCLES)
CLOCK: Final = 3.0  # cycles per nanosecond
# The spread of log seconds before the first sample: a factor of e.
UNTESTED: Final = 1.0


class Analytic:
    """A CostModel, and a prior for others: the roofline of a scheduled kernel.

    The cycles are those of the statement that takes longest to compute, load or move, by the facts
    of `features`. clock: cycles per nanosecond. Samples only calibrate it: the median log ratio of
    measured to estimated time is added, and the standard deviation of these ratios is the spread.
    """

    name = "analytic"
    unit = LOG_SECONDS
    absolute = True

    def __init__(self, features: Fast, clock: float = CLOCK) -> None:
        self._features = features
        self._clock = clock
        self._off: list[float] = []

    def fit(self, samples: Sequence[Sample]) -> None:
        """Calibrate on these samples only."""
        self._off = []
        self.update(samples)

    def update(self, samples: Sequence[Sample]) -> None:
        """Calibrate on these samples in addition; failed ones are ignored."""
        ok = [s for s in samples if np.isfinite(s.seconds)]
        measured = np.log(np.array([s.seconds for s in ok], np.float64))
        off = measured - self._estimates([s.kernel for s in ok])
        self._off += [float(x) for x in off]

    def predict(self, task: str, kernels: Sequence[Kernel]) -> Prediction:
        """Predict log seconds from the machine's parameters, corrected by samples if any."""
        offset = float(np.median(self._off)) if self._off else 0.0
        spread = float(np.std(self._off)) if len(self._off) > 1 else UNTESTED
        cost = self._estimates(kernels) + offset
        return Prediction(cost, np.full(len(kernels), spread))

    def save(self, path: Path) -> None:
        """Write the calibration."""
        stored.write(path, self.name, self.state())

    def load(self, path: Path) -> None:
        """Read a file written by `save`. Raises InputError for any other file."""
        self.restore(stored.read(path, self.name))

    def state(self) -> State:
        """The calibration."""
        return {"off": self._off}

    def restore(self, state: State) -> None:
        """Restore a result of `state`."""
        self._off = [float(x) for x in state["off"]]

    def _estimates(self, kernels: Sequence[Kernel]) -> Vector:
        if not kernels:
            return np.zeros(0)
        return estimates(self._features.extract_all(kernels), self._clock)


def estimates(rows: Rows, clock: float = CLOCK) -> Vector:
    """Log seconds for rows of the set `fast`, at `clock` cycles per nanosecond."""
    logs: Vector = rows[:, COLUMN].astype(float)
    return np.log(np.exp2(logs) / clock * 1e-9)
