"""Gradient-boosted trees over rows of features, by LightGBM.

A program's cost is the sum of the trees' values over its rows, as in Ansor: a longer-running store
adds more. Unless costs are throughputs, values are logarithms and their exponentials are summed.
The gradient of a program's cost is passed on to its rows; the second derivative is a bound for
simultaneous steps of all rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.base.errors import InputError, UnsupportedError
from tilewright.tune.base import Vector
from tilewright.tune.models.objectives import THROUGHPUT, Objective
from tilewright.tune.models.programs import Examples, ProgramRows
from tilewright.tune.models.stored import State

if TYPE_CHECKING:
    import lightgbm

# One thread, because the cores are for measuring. Few samples must suffice for a split.
_PARAMETERS = {
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "verbosity": -1,
    "num_leaves": 31,
    "learning_rate": 0.1,
    "min_data_in_leaf": 3,
    "min_sum_hessian_in_leaf": 1e-3,
    "min_data_in_bin": 1,
    "lambda_l2": 1.0,
    "feature_fraction": 0.7,
    "feature_pre_filter": False,
}


class Trees:
    """A Learner. rounds: the number of trees."""

    def __init__(self, objective: Objective, seed: int = 0, rounds: int = 150) -> None:
        self._objective = objective
        self._seed = seed
        self._rounds = rounds
        self._start = 0.0
        self._booster: lightgbm.Booster | None = None

    @property
    def name(self) -> str:
        """Trees with their objective."""
        return f"trees ({self._objective.name})"

    @property
    def unit(self) -> str:
        """The unit of its costs."""
        return self._objective.unit

    def fit(self, examples: Examples) -> None:
        """Train on these examples. Raises UnsupportedError without LightGBM."""
        package = _lightgbm()
        programs = examples.programs
        self._booster = None
        self._start = self._objective.start(examples)
        # LightGBM rejects features that are all constant.
        if not programs.rows.size or not np.ptp(programs.rows, axis=0).any():
            return
        adds = _added if self.unit == THROUGHPUT else _logs_added
        none = adds(programs, np.zeros(len(programs.rows)))[0]
        self._start -= float(np.mean(none[programs.counts > 0]))
        loss = self._objective.loss(examples, np.random.default_rng(self._seed))
        known = self._start + examples.prior

        def gradients(values: Vector, _: object) -> tuple[Vector, Vector]:
            costs, by_row, bend = adds(programs, values)
            _, gradient, hessian = loss(known + costs)
            owner = programs.owner
            return gradient[owner] * by_row, hessian[owner] * bend

        parameters: dict[str, Any] = dict(_PARAMETERS)
        parameters["seed"] = self._seed
        parameters["objective"] = gradients
        data = package.Dataset(programs.rows, np.zeros(len(programs.rows)))
        self._booster = package.train(parameters, data, self._rounds)

    def costs(self, programs: ProgramRows) -> Vector:
        """Predict the sums over the programs' rows."""
        constant = np.full(len(programs), self._start)
        if self._booster is None or not programs.rows.size:
            return constant
        found: Any = self._booster.predict(programs.rows, raw_score=True, num_threads=1)
        adds = _added if self.unit == THROUGHPUT else _logs_added
        return constant + adds(programs, found)[0]

    def state(self) -> State:
        """The trees in LightGBM's text format."""
        trees = None if self._booster is None else self._booster.model_to_string()
        return {"start": self._start, "trees": trees}

    def restore(self, state: State) -> None:
        """Restore a result of `state`. Raises InputError for text that is not a LightGBM model."""
        package = _lightgbm()
        self._start = float(state["start"])
        self._booster = None
        if state["trees"] is None:
            return
        try:
            self._booster = package.Booster(model_str=state["trees"])
        except package.basic.LightGBMError as error:
            raise InputError(f"the trees of the cost model: {error}") from error


def _added(programs: ProgramRows, values: Vector) -> tuple[Vector, Vector, Vector]:
    """The sums over rows, and the factors of their first and second derivatives."""
    several: Vector = programs.counts[programs.owner].astype(np.float64)
    return programs.sums(values), np.ones(len(values)), several


def _logs_added(programs: ProgramRows, values: Vector) -> tuple[Vector, Vector, Vector]:
    """The same for logarithms of values and sums; a program without rows adds nothing."""
    costs, shares = programs.log_sums(values)
    return np.where(programs.counts > 0, costs, 0.0), shares, shares


def _lightgbm() -> Any:
    try:
        import lightgbm
    except ImportError as error:
        raise UnsupportedError(
            "cost models of trees need LightGBM, which is not installed",
            code="TW-EXTRA",
            hint="pip install 'tilewright[tune]'",
        ) from error
    return lightgbm
