"""Training objectives, as gradients with respect to the predicted costs of programs.

Trees and networks share them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.tune.base import Vector
from tilewright.tune.models.programs import Examples, Numbers

# Units of costs: log seconds; any increasing function of them; a negated throughput.
LOG_SECONDS: Final = "log seconds"
ORDER: Final = "order"
THROUGHPUT: Final = "throughput"

# Maps predicted costs, [programs], to the loss and its first and second derivatives. Where the true
# second derivatives couple programs, these are upper bounds.
Loss = Callable[[Vector], tuple[float, Vector, Vector]]


class Objective(Protocol):
    """unit: of the costs that minimize it."""

    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> str: ...

    def start(self, examples: Examples) -> float:
        """The best constant cost."""
        ...

    def loss(self, examples: Examples, random: np.random.Generator) -> Loss:
        """The loss as a function of the predicted costs of these examples, prior included."""
        ...


class LogSeconds:
    """Squared differences of log seconds."""

    name = "regression"
    unit = LOG_SECONDS

    def start(self, examples: Examples) -> float:
        return float(np.mean(examples.costs() - examples.prior))

    def loss(self, examples: Examples, random: np.random.Generator) -> Loss:
        wanted = examples.costs()
        ones = np.ones(len(examples))

        def value(costs: Vector) -> tuple[float, Vector, Vector]:
            error = costs - wanted
            return float(np.sum(error * error) / 2), error, ones

        return value


class WeightedThroughput:
    """Ansor's objective: squared differences of throughputs, weighted by the true throughput.

    A throughput is the task's shortest time divided by the program's. The weight is at least LEAST,
    so that slow and failed programs count a little.
    """

    name = "throughput"
    unit = THROUGHPUT
    LEAST = 0.05

    def start(self, examples: Examples) -> float:
        weight = np.maximum(examples.throughput(), self.LEAST)
        wanted = -examples.throughput() - examples.prior
        return float(np.average(wanted, weights=weight))

    def loss(self, examples: Examples, random: np.random.Generator) -> Loss:
        wanted = -examples.throughput()
        weight = np.maximum(-wanted, self.LEAST)

        def value(costs: Vector) -> tuple[float, Vector, Vector]:
            error = costs - wanted
            gradient = weight * error
            return float(np.sum(gradient * error) / 2), gradient, weight

        return value


@dataclass(frozen=True)
class PairwiseRank:
    """log(1 + exp(fast - slow)), summed over pairs of programs of one task.

    As in LambdaMART, a pair is weighted by its importance: the difference of the throughputs, at
    least `least` for an unequal pair. pairs: how many are drawn per program, or all if there are no
    more. Two failures are not a pair.
    """

    pairs: int = 32
    least: float = 0.1
    name: str = "rank"
    unit: str = ORDER

    def start(self, examples: Examples) -> float:
        return 0.0

    def loss(self, examples: Examples, random: np.random.Generator) -> Loss:
        fast, slow = _pairs(examples, self.pairs, random)
        throughput = examples.throughput()
        apart = throughput[fast] - throughput[slow]
        weight = np.maximum(apart, self.least)
        # Weights sum to the number of programs, so that all objectives have steps of the same size.
        weight *= len(examples) / max(float(weight.sum()), 1e-12)
        size = len(examples)

        def value(costs: Vector) -> tuple[float, Vector, Vector]:
            margin = costs[fast] - costs[slow]
            wrong = 1 / (1 + np.exp(-np.clip(margin, -60, 60)))
            pull = weight * wrong
            gradient = _placed(fast, pull, size) - _placed(slow, pull, size)
            bend = 2 * pull * (1 - wrong)
            hessian = _placed(fast, bend, size) + _placed(slow, bend, size)
            return float(weight @ np.logaddexp(0, margin)), gradient, hessian

        return value


def _placed(at: Numbers, values: Vector, size: int) -> Vector:
    """Sum the values that share an index."""
    found: Vector = np.zeros(size)
    np.add.at(found, at, values)
    return found


def _pairs(
    examples: Examples, most: int, random: np.random.Generator
) -> tuple[Numbers, Numbers]:
    """Pairs within a task: the indices of the faster and of the slower programs."""
    found: list[Numbers] = []
    for group in np.unique(examples.group):
        members = np.flatnonzero(examples.group == group)
        if len(members) * (len(members) - 1) // 2 <= most * len(members):
            one, other = np.triu_indices(len(members), 1)
        else:
            one = np.repeat(np.arange(len(members)), most)
            other = random.integers(0, len(members), len(one))
        found.append(np.stack([members[one], members[other]]))
    if not found:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    one, other = np.concatenate(found, axis=1)
    seconds = examples.seconds
    swapped = seconds[one] > seconds[other]
    fast = np.where(swapped, other, one)
    slow = np.where(swapped, one, other)
    differ = seconds[fast] < seconds[slow]
    return fast[differ], slow[differ]


OBJECTIVES: Final[Mapping[str, Objective]] = {
    o.name: o for o in (PairwiseRank(), LogSeconds(), WeightedThroughput())
}
