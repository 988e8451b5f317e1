"""Which loops are parted where their bounds decide what they ask, beside the `halide` package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import halide as hl
from tilewright.schedule.steady import steady

theirs = pytest.importorskip("halide")
image = np.random.default_rng(0).integers(0, 255, (24, 64)).astype(np.uint8)


def blur(m: Any, schedule: Callable[[Any, Any, Any], object]) -> Any:
    x, y = m.Var("x"), m.Var("y")
    edge = m.BoundaryConditions.repeat_edge(m.Buffer(image))
    f = m.Func("f")
    f[x, y] = m.u16(edge[x - 1, y]) + m.u16(edge[x + 1, y + 1])
    schedule(f, x, y)
    return f


SCHEDULES: dict[str, Callable[[Any, Any, Any], object]] = {
    "x": lambda f, x, y: f.vectorize(x, 8).never_partition([x]),
    "x and y": lambda f, x, y: f.vectorize(x, 8).never_partition([x, y]),
    "all": lambda f, x, y: f.vectorize(x, 8).never_partition_all(),
    "y": lambda f, x, y: f.vectorize(x, 8).never_partition([y]),
}


def loops(f: Any) -> int:
    """How many loops along x there are in the code."""
    return str(steady(f.kernel([64, 24]))).count("for f.x.i")


@pytest.mark.sampled(2)  # one loop, and all
@pytest.mark.parametrize("name", SCHEDULES)
def test_results_are_those_of_halide(name: str) -> None:
    found = [blur(m, SCHEDULES[name]).realize([64, 24]) for m in (hl, theirs)]
    np.testing.assert_array_equal(*map(np.asarray, found))


def test_a_loop_stays_whole() -> None:
    parted = loops(blur(hl, lambda f, x, y: f.vectorize(x, 8)))
    assert parted > 1
    assert loops(blur(hl, SCHEDULES["x"])) == 1
    assert loops(blur(hl, SCHEDULES["all"])) == 1
    assert loops(blur(hl, SCHEDULES["y"])) == parted  # what x decides is another matter


def test_no_test_is_made_of_a_whole_loop() -> None:
    def tiles(f: Any, x: Any, y: Any) -> None:
        xo, yo, xi, yi = hl.vars("xo yo xi yi")
        f.tile(x, y, xo, yo, xi, yi, 32, 8).vectorize(xi, 8)

    def whole(f: Any, x: Any, y: Any) -> None:
        tiles(f, x, y)
        f.never_partition(hl.Var("xo"))

    assert "if" in str(steady(blur(hl, tiles).kernel([64, 24])))
    assert "if" not in str(steady(blur(hl, whole).kernel([64, 24])))


def test_the_last_word_counts() -> None:
    f = blur(hl, lambda f, x, y: f.vectorize(x, 8).never_partition([x]))
    f.partition(hl.Var("x"), hl.Partition.Auto)
    assert loops(f) > 1
