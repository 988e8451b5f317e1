"""A prior's error between measured programs, and a second opinion before there are any."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tilewright.base.errors import InputError
from tilewright.loops.nodes import Kernel
from tilewright.tune.base import Prediction, Sample
from tilewright.tune.features.fast_columns import COLUMNS
from tilewright.tune.models.advised import FEW, Advised
from tilewright.tune.models.gaussian_process import GaussianProcess
from tilewright.tune.models.objectives import LOG_SECONDS, ORDER


class Line:
    """Features of kernels that are numbers: they lie on a line."""

    name = "fast"
    version = 1

    def extract(self, kernel: Any) -> Any:
        return self.extract_all([kernel])

    def extract_all(self, kernels: Sequence[Any]) -> Any:
        rows = np.zeros((len(kernels), len(COLUMNS)), np.float32)
        rows[:, 0] = kernels
        return rows


class Guess:
    """A prior: log seconds that rise with the kernel's number."""

    name = "guess"

    def __init__(self, slope: float = 0.1, unit: str = LOG_SECONDS) -> None:
        self.slope, self.unit = slope, unit

    def predict(self, task: str, kernels: Sequence[Any]) -> Prediction:
        cost = self.slope * np.array(kernels, np.float64)
        return Prediction(cost, np.full(len(kernels), 0.7))

    def state(self) -> dict[str, Any]:
        return {"slope": self.slope}

    def restore(self, state: Any) -> None:
        self.slope = state["slope"]


def near(slope: float = 0.1) -> GaussianProcess:
    return GaussianProcess(cast(Any, Line()), Guess(slope))


def samples(
    numbers: Sequence[int], slope: float, task: str = "a", machine: str = ""
) -> list[Sample]:
    times = np.exp(slope * np.array(numbers))
    return [
        Sample(task, cast(Kernel, n), float(t), machine)
        for n, t in zip(numbers, times, strict=True)
    ]


def costs(model: Any, numbers: Sequence[int], task: str = "a") -> list[float]:
    found: list[float] = model.predict(task, numbers).cost.tolist()
    return found


def test_a_prior_that_is_wrong_is_corrected_nearby() -> None:
    model = near()
    assert costs(model, [0, 10]) == [0.0, 1.0]
    model.update(samples(range(0, 40, 2), -0.1))
    found = costs(model, [1, 11, 21, 31])
    np.testing.assert_allclose(found, [-0.1, -1.1, -2.1, -3.1], atol=0.05)
    assert costs(model, [0, 10], "b") == [0.0, 1.0]
    assert model.predict("a", []).cost.size == 0


def test_doubt_grows_with_the_distance_from_what_was_measured() -> None:
    model = near()
    assert model.predict("a", cast(Any, [3])).spread.tolist() == [0.7]
    model.update(samples([0, 1, 2, 3], 0.2))
    spread = model.predict("a", cast(Any, [3, 4, 8, 400])).spread
    assert (np.diff(spread) > 0).all() and spread[0] < spread[-1] / 5


def test_a_failure_is_slow_and_failures_alone_teach_nothing() -> None:
    model = near(0.0)
    failed = [Sample("a", cast(Kernel, n), float("inf")) for n in (30, 31)]
    model.update(failed)
    assert costs(model, [30, 0]) == [0.0, 0.0]
    model.update(samples([0, 1, 2], 0.0))
    assert costs(model, [30])[0] > costs(model, [1])[0] + 0.3


def test_machines_that_differ_by_a_factor_teach_the_same_order() -> None:
    model = near(0.0)
    there = samples(range(0, 20, 2), 0.1, machine="there")
    slower = [Sample(s.task, s.kernel, 100 * s.seconds, s.machine) for s in there]
    model.update(slower)
    model.update(samples(range(1, 21, 2), 0.1, machine="here"))
    found = costs(model, range(20))
    assert (np.diff(found) > 0).all()
    assert found[10] == pytest.approx(1.0, abs=0.2)  # in seconds of the last machine


def test_a_fit_forgets_and_a_file_goes_on(tmp_path: Path) -> None:
    model, other = near(), near(5.0)
    model.update(samples([90], 3.0))
    model.fit(samples([0, 4], 0.3))
    model.save(tmp_path / "m")
    other.load(tmp_path / "m")
    for one in (model, other):
        one.update(samples([8], 0.3))
    whole = near()
    whole.fit(samples([0, 4, 8], 0.3))
    assert costs(other, range(9)) == costs(model, range(9)) == costs(whole, range(9))
    changed = Line()
    changed.version = 2
    with pytest.raises(InputError, match="has version 1 of the features 'fast', not 2"):
        GaussianProcess(cast(Any, changed), Guess()).load(tmp_path / "m")


def test_models_of_an_order_are_refused() -> None:
    with pytest.raises(InputError, match="guess predicts"):
        GaussianProcess(cast(Any, Line()), Guess(unit=ORDER))
    with pytest.raises(InputError, match="guess predicts"):
        Advised(near(), Guess(unit=ORDER))


def test_a_second_opinion_counts_until_there_are_enough_samples(tmp_path: Path) -> None:
    model = Advised(near(0.1), Guess(0.3))
    found = model.predict("a", cast(Any, [0, 10]))
    np.testing.assert_allclose(found.cost, [0.0, 2.0])
    np.testing.assert_allclose(found.spread, 0.7 / np.sqrt(2))
    own = near(0.1)
    for count in range(1, FEW + 1):
        more = samples([count], -0.1)
        model.update(more)
        own.update(more)
        asked = [0, 20]
        mean = np.add(costs(own, asked), Guess(0.3).predict("", asked).cost) / 2
        expected = costs(own, asked) if count == FEW else mean
        np.testing.assert_allclose(costs(model, asked), expected)
    np.testing.assert_allclose(costs(model, [0, 10], "b"), [0.0, 2.0])  # has none
    model.save(tmp_path / "m")
    other = Advised(near(9.0), Guess(9.0))
    other.load(tmp_path / "m")
    assert costs(other, range(9)) == costs(model, range(9))
    assert costs(other, range(9), "b") == costs(model, range(9), "b")
    model.fit(samples([1], -0.1))
    assert costs(model, [20])[0] > costs(own, [20])[0]  # asks for both again
