"""One executable for ranges of two or three sizes: numbers that several of them give."""

from __future__ import annotations

import pytest

from tests.driver.ranges import random_counts


@pytest.mark.representatives("103", "105")
@pytest.mark.parametrize("seed", [100, 101, 103, 105, 109])
def test_random_networks_of_counts(seed: int) -> None:
    assert random_counts.run(seed) == "right"


@pytest.mark.slow
def test_many_random_networks_of_counts() -> None:
    """Many are refused, as they have remainders and maxima of sizes."""
    found = [random_counts.run(seed) for seed in range(100, 200)]
    assert found.count("right") > 45
