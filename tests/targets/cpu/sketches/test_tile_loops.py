"""The loops outside of tiles: threads divide what is larger, the rows or what columns read."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from tests.targets.cpu.sketches.machines import Small
from tests.targets.cpu.sketches.test_sketches import native, product
from tilewright.base.dtypes import float32
from tilewright.compute.build import reduce_
from tilewright.expr.nodes import Buffer
from tilewright.loops.verify import verify
from tilewright.loops.walk import loops_of
from tilewright.schedule.space import Point
from tilewright.targets.cpu.cost import cost_model
from tilewright.targets.cpu.machine import machine
from tilewright.targets.cpu.sketches import Context, sketches
from tilewright.targets.cpu.sketches.register_tile_model import (
    Traffic,
    columns_outermost,
)
from tilewright.testing.random_kernels import plain


@dataclass(frozen=True, slots=True)
class Caches(Small):
    """One of these holds a whole operand, the other a panel."""

    l1: int = 1 << 12
    l2: int = 1 << 15


@dataclass(frozen=True, slots=True)
class Alone(Caches):
    cores: int = 1


def multiplied(m: int, n: int, k: int, machine: Small) -> Point:
    computations = product(m, n, k)
    weights = next(b for c in computations for b in c.inputs if b.name == "B")
    found = sketches(plain(computations), computations, Context(machine, {weights}))[0]
    return found.at({"mm.parallel": True})


def shared(point: Point) -> str:
    """The loop whose iterations the threads divide."""
    return next(
        f.var.name for f in loops_of(point.schedule.kernel.body) if f.kind == "parallel"
    )


def test_each_thread_has_rows_of_its_own_where_they_are_larger_than_the_weights():
    point = multiplied(216, 40, 24, Caches())
    assert shared(point).startswith("relu.i.o")
    steps = -(-216 // point.values["mm.tile"][0])
    assert steps // point.values["mm.block"] % Caches().cores == 0


def test_threads_divide_weights_that_are_larger_than_the_rows():
    assert shared(multiplied(24, 208, 40, Caches())).startswith("relu.j.o")


def test_one_thread_goes_by_the_caches_alone():
    assert shared(multiplied(208, 40, 24, Alone())).startswith("relu.j.o")


@pytest.mark.covering(1)
@pytest.mark.parametrize("size", [(208, 40, 24), (24, 208, 40), (65, 33, 7)], ids=str)
@pytest.mark.parametrize("machine", [Caches, Alone])
def test_all_agree(size, machine, results):
    computations = product(*size)
    after = multiplied(*size, machine()).schedule.kernel
    verify(after)
    for a, *both in zip(
        results(plain(computations)), results(after), native(after), strict=True
    ):
        for b in both:
            np.testing.assert_allclose(b, a, rtol=2e-4, atol=2e-4)


def test_a_batch_of_products_with_one_row_each(results):
    x, w, y = (
        Buffer(n, s, float32)
        for n, s in [("X", (5, 9)), ("W", (5, 9, 12)), ("Y", (5, 12))]
    )
    c = reduce_("mv", y, (9,), "add", lambda b, j, k: x[b, k] * w[b, k, j])
    after = sketches(plain([c]), [c], Context(Small()))[0].default().schedule.kernel
    verify(after)
    for a, *both in zip(
        results(plain([c])), results(after), native(after), strict=True
    ):
        for b in both:
            np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("channels", "worth"), [(16, False), (320, True)])
def test_large_data_is_shared_even_where_there_is_little_to_compute(channels, worth):
    x, w, y = (
        Buffer(n, s, float32)
        for n, s in [
            ("X", (16, 16, channels)),
            ("W", (3, 3, channels)),
            ("Y", (14, 14, channels)),
        ]
    )
    depthwise = reduce_(
        "dw", y, (3, 3), "add", lambda i, j, c, h, v: x[i + h, j + v, c] * w[h, v, c]
    )
    found = sketches(plain([depthwise]), [depthwise], Context(Small(), {w}))[0]
    assert 14 * 14 * 9 * channels < 1_000_000
    assert found.default().values["dw.parallel"] is worth


@pytest.mark.parametrize(
    ("rows", "tile", "depth", "columns", "kept"),
    [
        # The weights, beyond the second cache, would be read from there once per tile of rows.
        (28, 14, 4608, 512, True),
        # So they are only once.
        (16, 16, 4608, 512, False),
        # All is in the second cache, and a tile of rows in the first one.
        (96, 8, 512, 256, False),
        # Tiles of rows leave the first cache, and would be read again for each panel.
        (96, 24, 512, 256, True),
    ],
)
def test_a_panel_of_columns_is_kept_where_that_saves_traffic(
    rows: int, tile: int, depth: int, columns: int, kept: bool
) -> None:
    """Products with panels of 32 columns, beside caches of 48 KiB and 1 MiB."""
    costs = cost_model(replace(machine("x86-64-v4"), l1=48 << 10, l2=1 << 20))
    row = 4 * depth
    steps = rows // tile, columns // 32
    found = Traffic(rows * row, columns * row, 32 * row, *steps)
    assert columns_outermost(found, costs) == kept
