"""Reductions for any sizes into a part of a tensor: vectors along its last dimension."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.base.dtypes import float32
from tilewright.compute.build import reduce_
from tilewright.compute.nodes import Computation, Output
from tilewright.expr.nodes import INDEX, Buffer, Expr, Var
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.loops.walk import loops_of
from tilewright.targets.registry import target

N = Var("n", INDEX)
CHANNELS = 24


def pooled(window: int, border: int = 1, columns: bool = True) -> Any:
    """The maximum of windows of rows, inside of a border; as a Computation and a Kernel."""
    x = Buffer("x", (N, window, CHANNELS), float32)
    whole = Buffer("whole", (N, CHANNELS), float32)
    c = reduce_(
        "pool",
        whole,
        (window,),
        "max",
        lambda row, channel, m: x[row, m, channel],
    )
    (out,) = c.outputs
    row, channel = out.index
    index: tuple[Expr, ...] = (row + border, channel)
    shape: tuple[Any, ...] = (N + 2 * border, CHANNELS)
    if not columns:  # along no dimension of the result are elements side by side
        index, shape = (*index[::-1], row * 0), (*shape[::-1], 2)
    y = Buffer("y", shape, float32)
    c = replace(c, outputs=(Output(y, index, out.value),))
    return c, lower("pool", [c], [x, y], [y])


def kinds(c: Computation, kernel: Kernel) -> dict[str, str]:
    made = target("cpu").default_schedule(kernel, [c], ()).kernel
    return {f.var.name: f.kind for f in loops_of(made.body)}


def test_vectors_along_the_channels() -> None:
    c, kernel = pooled(2)
    found = kinds(c, kernel)
    assert "vector" in found.values()
    assert "unroll" in found.values()  # the window
    assert found["pool.row"] == "parallel"


def test_a_long_window_is_a_loop() -> None:
    c, kernel = pooled(40)
    found = kinds(c, kernel)
    assert "vector" in found.values()
    assert found["pool.m"] == "serial"


def test_a_result_whose_elements_are_apart_has_no_columns() -> None:
    c, kernel = pooled(2, columns=False)
    assert "vector" not in kinds(c, kernel).values()


@pytest.mark.parametrize(("window", "border"), [(2, 1), (3, 2), (40, 1)])
def test_results_are_right(window: int, border: int) -> None:
    c, kernel = pooled(window, border)
    made = target("cpu").default_schedule(kernel, [c], ()).kernel
    run: Any = tw.compile(made, threads=2, cache=False)
    for n in (1, 5, 64):
        shape = (n, window, CHANNELS)
        x = np.random.default_rng(n).standard_normal(shape).astype(np.float32)
        np.testing.assert_array_equal(run(x)[border : border + n], x.max(1))
