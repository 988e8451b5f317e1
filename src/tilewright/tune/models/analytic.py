"""The analytic model: what bounds a kernel by the machine's own numbers, without any sample."""

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

CYCLES: Final = "least_cycles"  # the column of what takes longest: log2(1 + cycles)
COLUMN: Final = [c.name for c in COLUMNS].index(CYCLES)
CLOCK: Final = 3.0  # cycles per nanosecond
# Of the logarithm of seconds, before any sample has shown it: wrong by a factor of e.
UNTESTED: Final = 1.0


class Analytic:
    """A CostModel, and the prior of others: a roofline of a kernel as it is scheduled.

    The cycles are those of the features' statement that takes longest to compute, to load or to
    move, with the facts that `features` were given. clock: cycles per nanosecond. Samples only
    show how far it is off: the median of the logarithms of measured by estimated is added, and
    what is left of them is the spread.
    """

    name = "analytic"
    unit = LOG_SECONDS
    absolute = True

    def __init__(self, features: Fast, clock: float = CLOCK) -> None:
        self._features = features
        self._clock = clock
        self._off: list[float] = []

    def fit(self, samples: Sequence[Sample]) -> None:
        """See how far it is off on these alone."""
        self._off = []
        self.update(samples)

    def update(self, samples: Sequence[Sample]) -> None:
        """See how far it is off on these as well; a failed one says nothing."""
        ok = [s for s in samples if np.isfinite(s.seconds)]
        measured = np.log(np.array([s.seconds for s in ok], np.float64))
        off = measured - self._estimates([s.kernel for s in ok])
        self._off += [float(x) for x in off]

    def predict(self, task: str, kernels: Sequence[Kernel]) -> Prediction:
        """Logarithms of seconds, by the machine's numbers alone or corrected by the samples."""
        offset = float(np.median(self._off)) if self._off else 0.0
        spread = float(np.std(self._off)) if len(self._off) > 1 else UNTESTED
        cost = self._estimates(kernels) + offset
        return Prediction(cost, np.full(len(kernels), spread))

    def save(self, path: Path) -> None:
        """Write how far it is off."""
        stored.write(path, self.name, self.state())

    def load(self, path: Path) -> None:
        """Read what `save` wrote. Raises InputError for another file."""
        self.restore(stored.read(path, self.name))

    def state(self) -> State:
        """How far it is off."""
        return {"off": self._off}

    def restore(self, state: State) -> None:
        """Take what `state` gave."""
        self._off = [float(x) for x in state["off"]]

    def _estimates(self, kernels: Sequence[Kernel]) -> Vector:
        if not kernels:
            return np.zeros(0)
        return estimates(self._features.extract_all(kernels), self._clock)


def estimates(rows: Rows, clock: float = CLOCK) -> Vector:
    """Logarithms of seconds by rows of the set `fast`, for so many cycles per nanosecond."""
    logs: Vector = rows[:, COLUMN].astype(float)
    return np.log(np.exp2(logs) / clock * 1e-9)
