"""Gradient-boosted trees over rows of features, by LightGBM.

What a program costs is the sum of the trees' values of its rows, as in Ansor: a store that runs
longer adds more. But where costs are not throughputs, values are logarithms, of which the powers
are added. The gradient by a program's cost is passed on to its rows; the second derivative is a
bound for steps that all rows make at once.
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

# One thread: the cores are for measuring. Few samples must be enough to split.
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
    """A Learner. rounds: how many trees are fitted, one after another."""

    def __init__(self, objective: Objective, seed: int = 0, rounds: int = 150) -> None:
        self._objective = objective
        self._seed = seed
        self._rounds = rounds
        self._start = 0.0
        self._booster: lightgbm.Booster | None = None

    @property
    def name(self) -> str:
        """Trees by their objective."""
        return f"trees ({self._objective.name})"

    @property
    def unit(self) -> str:
        """What its costs are."""
        return self._objective.unit

    def fit(self, examples: Examples) -> None:
        """Fit the trees to examples. Raises UnsupportedError without LightGBM."""
        package = _lightgbm()
        programs = examples.programs
        self._booster = None
        self._start = self._objective.start(examples)
        # LightGBM takes no features that are all the same.
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
        """What the programs' rows add up to."""
        constant = np.full(len(programs), self._start)
        if self._booster is None or not programs.rows.size:
            return constant
        found: Any = self._booster.predict(programs.rows, raw_score=True, num_threads=1)
        adds = _added if self.unit == THROUGHPUT else _logs_added
        return constant + adds(programs, found)[0]

    def state(self) -> State:
        """The trees as LightGBM's text."""
        trees = None if self._booster is None else self._booster.model_to_string()
        return {"start": self._start, "trees": trees}

    def restore(self, state: State) -> None:
        """Take what `state` gave. Raises InputError for text that is not a model of LightGBM."""
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
    """The sums of rows, and what their first and second derivatives are of the programs'."""
    several: Vector = programs.counts[programs.owner].astype(np.float64)
    return programs.sums(values), np.ones(len(values)), several


def _logs_added(programs: ProgramRows, values: Vector) -> tuple[Vector, Vector, Vector]:
    """The same where values and sums are logarithms; a program without rows costs nothing more."""
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
