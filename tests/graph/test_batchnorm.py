"""Weights scaled in blocks, by two threads: to the bit as at once."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tilewright.graph.rules import batchnorm
from tilewright.graph.rules.batchnorm import scaled


@pytest.mark.parametrize("shape", [(301, 40, 5, 5), (3, 2), (0, 4), (7, 0, 3)])
def test_weights_are_scaled_in_blocks(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batchnorm, "_BLOCK", 50_000)
    rng = np.random.default_rng(0)
    weight = rng.standard_normal(shape).astype(np.float32)
    factor = rng.standard_normal(shape[0])
    if weight.size > 100:
        weight[5, 1], weight[200, 0, 0, 0], weight[300] = np.nan, -np.inf, 0.0
        factor[7] = 1e300
    with np.errstate(all="ignore"):
        along = factor.reshape(-1, *[1] * (weight.ndim - 1))
        expected = (weight * along).astype(np.float32)
        new, largest = batchnorm._products(weight, factor)
    np.testing.assert_array_equal(new.view(np.int32), expected.view(np.int32))
    assert new.shape == weight.shape
    rows = np.abs(weight.reshape(shape[0], math.prod(shape[1:])))
    np.testing.assert_array_equal(largest, rows.max(1, initial=0))


@pytest.mark.parametrize("columns", [1, 100_000])
def test_weights_are_scaled_where_their_type_can_hold_the_products(
    columns: int,
) -> None:
    weight = np.linspace(-2, 1, 5 * columns, dtype=np.float32).reshape(5, columns)
    weight[3] = 0
    factor = np.array([1.0, -2.0, 0.0, 1e-3, 1e3])
    found = scaled(weight, factor)
    want = (weight * factor[:, None]).astype(np.float32)
    np.testing.assert_array_equal(found, want)
    for large in (1e39, np.inf, np.nan, 1e-39):
        factor[0] = large
        assert scaled(weight, factor) is None
