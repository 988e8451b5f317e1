"""Whether a model with tuned schedules gives the results that it gives without."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.base.errors import VerifyError
from tilewright.driver.same_results import expect_equal
from tilewright.runtime.executable import Executable


class _Fixed(Executable):
    """Gives the same results whatever it gets."""

    def __init__(self, *results: np.ndarray) -> None:
        self.results = results

    @property
    def outputs(self) -> object:  # type: ignore[override]
        from tilewright.runtime.model import Tensor

        return [
            Tensor(f"y{n}", r.dtype.name, r.shape) for n, r in enumerate(self.results)
        ]

    def run(self, feeds: object, out: object = None) -> list[np.ndarray]:
        return list(self.results)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (np.float32([1, 2]), np.float32([1, 2.001]), True),
        (np.float32([1, 2]), np.float32([1, 2.1]), False),
        (np.float32([0, np.nan]), np.float32([0, np.nan]), True),
        (np.float32([0, np.nan]), np.float32([0, 1]), False),
        (np.float32([0, np.inf]), np.float32([0, -np.inf]), False),
        (np.float32([0, np.inf]), np.float32([0, 5]), False),
        (np.float32([0, 1]), np.float32([0, np.nan]), False),
        (np.int64([1, 2]), np.int64([1, 3]), False),
        (np.array([True]), np.array([True]), True),
        (np.array(["a"], object), np.array(["a"], object), True),
        (np.array(["a"], object), np.array(["b"], object), False),
    ],
)
def test_results_that_differ_are_an_error(
    a: np.ndarray, b: np.ndarray, same: bool
) -> None:
    if same:
        expect_equal(_Fixed(a), _Fixed(b), {})
        return
    with pytest.raises(VerifyError, match="output 'y0': the tuned schedules change it"):
        expect_equal(_Fixed(a), _Fixed(b), {})


class _Counting(_Fixed):
    """Gives another number in each run."""

    def run(self, feeds: object, out: object = None) -> list[np.ndarray]:
        self.results = tuple(r + 1 for r in self.results)
        return list(self.results)


def test_results_that_are_never_the_same_are_not_compared() -> None:
    """As those of RandomNormal."""
    plain, tuned = _Counting(np.float32([1, 2])), _Fixed(np.float32([7, 7]))
    with pytest.warns(tw.TilewrightWarning, match="'y0' varies between runs"):
        expect_equal(plain, tuned, {})
