"""What points tell of others: variances that are left, and values between measured ones."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.tune.features.fast_columns import COLUMNS
from tilewright.tune.kriging import (
    LENGTH,
    NOISE,
    Interpolation,
    Points,
    RemainingVariance,
    correlations,
    distances,
    places,
)


def points(count: int, seed: int = 0, wide: float = 10.0) -> Points:
    return np.random.default_rng(seed).random((count, 3)) * wide


def test_columns_move_a_program_by_their_unit() -> None:
    names = [c.name for c in COLUMNS]
    rows = np.zeros((4, len(names)), np.float32)
    for row, name in enumerate(("loops", "tile_in_l1", "stores_per"), 1):
        rows[row, names.index(name)] = 1.0
    found = distances(places(rows), places(rows))
    assert found[0].tolist() == [0.0, 1.0, 3.0, 0.0]
    more = np.hstack([rows, np.ones((4, 2), np.float32)])  # of `Fast.terms`
    assert (places(more) == places(rows)).all()


def test_correlations_fall_with_the_distance() -> None:
    line = np.array([[0.0], [LENGTH], [100 * LENGTH]])
    assert correlations(line, line)[0] == pytest.approx([1.0, np.exp(-1), 0.0])


def test_what_is_known_leaves_less_variance() -> None:
    asked, known = points(6), points(4, 1)
    noisy = correlations(known, known) + NOISE * np.eye(4)
    seen = correlations(known, asked)
    expected = 1 - np.sum(seen * np.linalg.solve(noisy, seen), axis=0)
    found = RemainingVariance(asked, known)
    np.testing.assert_allclose(found.left, expected)
    assert RemainingVariance(asked, known[:0]).left.tolist() == [1.0] * 6
    assert RemainingVariance(known, known).left.max() < 2 * NOISE


def test_points_become_known_one_after_the_other() -> None:
    asked, known = points(6), points(4, 1)
    found = RemainingVariance(asked, known)
    found.know(2)
    found.know(5)
    whole = RemainingVariance(asked, np.vstack([known, asked[[2, 5]]]))
    np.testing.assert_allclose(found.left, whole.left, atol=1e-9)
    again = found.left.copy()
    found.know(2)  # what is known tells little more
    assert np.abs(found.left - again).max() < NOISE


def test_values_are_met_where_measured_and_usual_far_away() -> None:
    measured = points(40)
    values = measured.sum(axis=1)
    found = Interpolation.of(measured, values)
    there, sure = found.at(measured)
    assert np.abs(there - values).max() < 0.05 * np.ptp(values)
    far, unsure = found.at(measured[:1] + 1e5)
    assert far[0] == pytest.approx(values.mean())
    assert unsure[0] == pytest.approx(found.deviation) and sure.max() < unsure[0] / 4


def test_values_between_are_better_than_the_mean() -> None:
    measured, asked = points(60), points(30, 1)
    found = Interpolation.of(measured, measured[:, 0])
    between, _ = found.at(asked)
    wrong = np.abs(between - asked[:, 0]).mean()
    assert wrong < 0.3 * np.abs(asked[:, 0].mean() - asked[:, 0]).mean()


def test_the_length_is_that_of_the_values() -> None:
    line = np.arange(60.0)[:, None]
    smooth = Interpolation.of(line, np.sin(line[:, 0] / 20))
    rough = Interpolation.of(line, np.random.default_rng(0).normal(size=60))
    assert smooth.length > rough.length


def test_one_value_is_the_mean_with_the_usual_doubt() -> None:
    one = Interpolation.of(points(1), np.array([3.0]))
    cost, spread = one.at(points(1, 5) + 1e5)
    assert cost[0] == 3.0 and 0.2 < spread[0] < 0.3
