"""A model trained in advance on programs of many operators; one is part of this package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.loops.nodes import Kernel
from tilewright.tune.base import Prediction, Sample
from tilewright.tune.features.facts import USUAL, Facts
from tilewright.tune.features.fast import Fast
from tilewright.tune.models import stored
from tilewright.tune.models.analytic import estimates
from tilewright.tune.models.forest import TreeEnsemble
from tilewright.tune.models.objectives import LOG_SECONDS
from tilewright.tune.models.programs import Rows
from tilewright.tune.models.stored import State

NAME: Final = "pretrained"
SHIPPED: Final = Path(__file__).with_name("pretrained.json")


@dataclass(eq=False)
class Pretrained:
    """An ensemble of trees on the feature set `fast`, trained on programs of many operators.

    unit: of their costs (`models.objectives`). prior: whether they predict the residual of the
    analytic model's logarithms of seconds. card: its training data and its accuracy.
    """

    members: Sequence[TreeEnsemble]
    unit: str
    prior: bool
    card: Mapping[str, Any]
    facts: Facts = USUAL

    name = NAME

    def __post_init__(self) -> None:
        self.absolute = self.unit == LOG_SECONDS

    @cached_property
    def features(self) -> Fast:
        """The extractor of kernel features."""
        return Fast(self.facts)

    def predict(self, task: str, kernels: Sequence[Kernel]) -> Prediction:
        """Predict the cost of programs; the spread is that of the members."""
        return self.judge(self.features.extract_all(kernels))

    def judge(self, rows: Rows) -> Prediction:
        """Predict the cost of programs from their features: float32 [programs, columns]."""
        found = np.stack([m.values(rows) for m in self.members])
        known = estimates(rows) if self.prior else np.zeros(len(rows))
        return Prediction(found.mean(axis=0) + known, found.std(axis=0))

    def compared(self, default: Kernel, kernels: Sequence[Kernel]) -> Prediction:
        """Predict the cost of programs relative to the default."""
        first, *rows = self.features.extract_all([default, *kernels])
        return self.beside(first, np.stack(rows))

    def beside(self, default: Rows, rows: Rows) -> Prediction:
        """Predict the cost of programs relative to the default, from their features.

        default: float32 [columns]. rows: float32 [programs, columns]. Each member takes its own
        difference, and the spread is that of these differences: an error of a member that a kernel
        and its default share cancels.
        """
        both = np.concatenate([default[None], rows])
        found = np.stack([m.values(both) for m in self.members])
        more = found[:, 1:] - found[:, :1]
        known = estimates(both) if self.prior else np.zeros(len(both))
        return Prediction(more.mean(axis=0) + known[1:] - known[0], more.std(axis=0))

    def fit(self, samples: Sequence[Sample]) -> None:
        """Does nothing: the model was trained before."""

    def update(self, samples: Sequence[Sample]) -> None:
        """Does nothing: the model was trained before."""

    def save(self, path: Path) -> None:
        """Write the model to one file."""
        stored.write(path, NAME, self.state())

    def load(self, path: Path) -> None:
        """Read a file written by `save`. Raises InputError for any other file, and for a model of
        another version of the features."""
        self.restore(stored.read(path, NAME))

    def state(self) -> State:
        """The trees and the card."""
        return {
            "features": Fast.version,
            "unit": self.unit,
            "prior": self.prior,
            "members": [m.state() for m in self.members],
            "card": dict(self.card),
        }

    def restore(self, state: State) -> None:
        """Restore a result of `state`. Raises InputError if the features have another version."""
        if state["features"] != Fast.version:
            raise InputError(
                f"the pretrained model has version {state['features']} of the features "
                f"{Fast.name!r}, not {Fast.version}",
                hint="train it again: `python -m benchmarks.pretrain data` and `train`",
            )
        self.members = [TreeEnsemble.restore(m) for m in state["members"]]
        self.unit, self.prior = state["unit"], state["prior"]
        self.card = state["card"]
        self.__post_init__()


def read(path: Path, facts: Facts = USUAL) -> Pretrained:
    """The model of a file, for a machine. Raises InputError as `Pretrained.load`."""
    found = Pretrained([], LOG_SECONDS, False, {}, facts)
    found.load(path)
    return found


def shipped(facts: Facts) -> Pretrained:
    """The model of this package, for a machine. Takes some milliseconds."""
    return read(SHIPPED, facts)
