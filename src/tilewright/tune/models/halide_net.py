"""Halide's network with physical cost terms (Adams et al., 2019), in NumPy.

A stage's features become nonnegative coefficients; the terms of `halide_costs` turn them into
seconds, summed over a program's stages.

    h1 = sigmoid(W1) pipeline + b1      [8]        h2 = relu(W2 log(1 + schedule) + b2)    [24]
    c = relu(W [h1, h2] + b)            [32]       seconds = unit * sum of c * factors

The loss is Halide's: on a task's throughputs, relative to the fastest. Halide's unit is a
nanosecond; here it is fitted so that the initial predictions are right in the median, because our
features count slightly differently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.tune.base import Vector
from tilewright.tune.models.adam import Array, Arrays, train
from tilewright.tune.models.halide_costs import COEFFICIENTS, SCHEDULE, columns, factors
from tilewright.tune.models.objectives import LOG_SECONDS
from tilewright.tune.models.programs import Examples, Numbers, ProgramRows
from tilewright.tune.models.stored import State

FIRST, SECOND = 8, 24  # sizes of the two heads' outputs
PENALTY = 1e-5  # per unit of a coefficient below 0
LEAST = 1e-10  # lower bound of seconds relative to the fastest, for divisions


@dataclass(frozen=True, eq=False, slots=True)
class StageBatch:
    """The stages of programs as inputs of the network.

    pipeline: [stages, features]; schedule: [stages, 39], log(1 + x); factors: [stages, 32].
    """

    programs: ProgramRows
    pipeline: Array
    schedule: Array
    factors: Array

    def take(self, chosen: Numbers) -> StageBatch:
        """The stages of selected programs, in the given order."""
        rows = self.programs.rows_of(chosen)
        programs = self.programs.take(chosen)
        parts = (self.pipeline, self.schedule, self.factors)
        return StageBatch(programs, *(part[rows] for part in parts))


def initial(pipeline: int, random: np.random.Generator) -> Arrays:
    """Random weights; coefficients start around 1, so that none is stuck at 0."""
    joined = FIRST + SECOND
    return {
        # Starts the sigmoid small, because counts of operations add up.
        "W1": random.standard_normal((pipeline, FIRST)) - 4,
        "b1": np.zeros(FIRST),
        "W2": random.standard_normal((len(SCHEDULE), SECOND)) / len(SCHEDULE),
        "b2": np.zeros(SECOND),
        "W": random.standard_normal((joined, COEFFICIENTS)) / (4 * joined),
        "b": np.ones(COEFFICIENTS),
    }


def forward(
    values: Mapping[str, Array], stages: StageBatch
) -> tuple[Vector, Mapping[str, Array]]:
    """The programs' predicted times in units, [programs], and the activations for `backward`."""
    weights = 1 / (1 + np.exp(-values["W1"]))
    h1 = stages.pipeline @ weights + values["b1"]
    a2 = stages.schedule @ values["W2"] + values["b2"]
    joined = np.concatenate([h1, np.maximum(a2, 0)], axis=1)
    a = joined @ values["W"] + values["b"]
    taken = stages.programs.sums(np.sum(np.maximum(a, 0) * stages.factors, axis=1))
    return taken, {"weights": weights, "a2": a2, "joined": joined, "a": a}


def backward(
    values: Mapping[str, Array],
    stages: StageBatch,
    kept: Mapping[str, Array],
    by_taken: Vector,
) -> Arrays:
    """The gradient of the weights, for the loss with gradient `by_taken` plus the penalty."""
    a, joined, weights = kept["a"], kept["joined"], kept["weights"]
    by_stage = by_taken[stages.programs.owner][:, None]
    da = np.where(a > 0, by_stage * stages.factors, -PENALTY * (a < 0))
    dj = da @ values["W"].T
    d1 = dj[:, :FIRST]
    d2 = dj[:, FIRST:] * (kept["a2"] > 0)
    return {
        "W1": (stages.pipeline.T @ d1) * weights * (1 - weights),
        "b1": d1.sum(axis=0),
        "W2": stages.schedule.T @ d2,
        "b2": d2.sum(axis=0),
        "W": joined.T @ da,
        "b": da.sum(axis=0),
    }


def loss(taken: Vector, fastest: Vector, seconds: Vector) -> tuple[float, Vector]:
    """Squared differences of throughputs relative to the task's fastest, and their gradient.

    taken, seconds: predicted and measured; failures have a throughput of 0.
    """
    relative = taken / fastest
    bounded = np.maximum(relative, LEAST)
    error = 1 / bounded - fastest / seconds
    slope = np.where(relative > LEAST, -1 / (bounded * bounded) / fastest, 0.0)
    return float(np.sum(error * error)), 2 * error * slope


def penalty(kept: Mapping[str, Array]) -> float:
    """The penalty of coefficients below 0, before they are clipped to 0."""
    return PENALTY * float(np.sum(np.maximum(-kept["a"], 0)))


class HalideNet:
    """A Learner over rows of stages, the output's last. names: of the columns; cores: that programs
    run on; steps: of training, each on a batch of `batch` programs."""

    name = "Halide's network"
    unit = LOG_SECONDS

    def __init__(
        self,
        names: Sequence[str],
        cores: int = 1,
        seed: int = 0,
        steps: int = 300,
        batch: int = 128,
    ) -> None:
        self._schedule, self._others = columns(names)
        self._cores = cores
        self._seed = seed
        self._steps = steps
        self._batch = batch
        self._unit = 1e-9
        self._values: Arrays = {}

    def fit(self, examples: Examples) -> None:
        """Train from random weights. A prior is included as a factor."""
        random = np.random.default_rng(self._seed)
        self._values = initial(len(self._others), random)
        fastest, seconds = examples.fastest(), examples.seconds
        known = np.exp(examples.prior)
        every = self._stages(examples.programs)
        first = forward(self._values, every)[0] * known
        off = examples.costs() - np.log(np.maximum(first, LEAST))
        self._unit = float(np.exp(np.median(off)))

        def gradient(step: int) -> Arrays:
            size = min(self._batch, len(examples))
            chosen = random.permutation(len(examples))[:size]
            stages = every.take(chosen)
            units, kept = forward(self._values, stages)
            factor = self._unit * known[chosen]
            _, by_taken = loss(units * factor, fastest[chosen], seconds[chosen])
            return backward(self._values, stages, kept, by_taken * factor / size)

        train(self._values, gradient, self._steps, rate=1e-2)

    def costs(self, programs: ProgramRows) -> Vector:
        """Predict log seconds."""
        units = forward(self._values, self._stages(programs))[0]
        return np.log(np.maximum(units * self._unit, LEAST))

    def state(self) -> State:
        """The weights."""
        return {"unit": self._unit, "values": self._values}

    def restore(self, state: State) -> None:
        """Restore a result of `state`."""
        self._unit = float(state["unit"])
        self._values = dict(state["values"])

    def _stages(self, programs: ProgramRows) -> StageBatch:
        rows: Array = programs.rows.astype(np.float64)
        schedule = rows[:, self._schedule]
        last = np.zeros(len(rows), bool)
        last[programs.ends[programs.counts > 0] - 1] = True
        return StageBatch(
            programs,
            rows[:, self._others],
            np.log1p(schedule),
            factors(schedule, last, self._cores),
        )
