"""Columns along a dimension that is contiguous in the result, though it is not the innermost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tests.targets.cpu.sketches.machines import Small
from tests.targets.cpu.sketches.test_sketches import native
from tilewright.base.dtypes import float32
from tilewright.compute.build import map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.loops.verify import verify
from tilewright.schedule.space.choices import Sketch
from tilewright.targets.cpu.machine import machine
from tilewright.targets.cpu.sketches import Context, sketches
from tilewright.testing.random_kernels import plain


@dataclass(frozen=True, slots=True)
class Shuffled:
    """Products whose columns are stored as DepthToSpace stores them, and their constants."""

    computations: list[Computation]
    weights: Buffer
    bias: Buffer

    def sketch(self, constants: set[Buffer]) -> Sketch:
        kernel = plain(self.computations)
        return sketches(kernel, self.computations, Context(Small(), constants))[0]

    def offered(self, constants: set[Buffer]) -> tuple[str, ...]:
        """The dimensions that columns may run along; () without a choice."""
        found = self.sketch(constants).default().parameters
        return next((p.candidates for p in found if p.name == "conv.vector"), ())


def shuffled(side: int = 2, channels: int = 6, residual: str = "") -> Shuffled:
    """y[p, i, j, c] of the columns (c, i, j), 7 rows, 5 steps.

    residual: the letters of the axes of a tensor that the map adds, in the order of memory.
    """
    extents = {"p": 7, "c": channels, "i": side, "j": side}
    x = Buffer("X", (7, 5), float32)
    w = Buffer("W", (channels, side, side, 5), float32)
    t = Buffer("T", tuple(extents.values()), float32)
    b = Buffer("B", (channels, side, side), float32)
    y = Buffer("Y", (7, side, side, channels), float32)
    added = Buffer("R", tuple(extents[a] for a in residual), float32)

    def behind(p, c, i, j):
        at = {"p": p, "c": c, "i": i, "j": j}
        value = t[p, c, i, j] + b[c, i, j]
        return value + added[tuple(at[a] for a in residual)] if residual else value

    def products(p, c, i, j, k):
        return x[p, k] * w[c, i, j, k]

    computations = [
        reduce_("conv", t, (5,), "add", products),
        map_("y", y, behind, extents=t.shape, index=lambda p, c, i, j: (p, i, j, c)),
    ]
    return Shuffled(computations, w, b)


@pytest.mark.covering(1)
@pytest.mark.parametrize("side", [2, 3])
@pytest.mark.parametrize("channels", [6, 8])
@pytest.mark.parametrize("residual", ["", "pijc", "pij"])
def test_every_choice_is_right(side, channels, residual, results):
    found = shuffled(side, channels, residual)
    kernel = plain(found.computations)
    want = results(kernel)
    sketch = found.sketch({found.weights, found.bias})
    offered = found.offered({found.weights, found.bias})
    assert "c" in offered
    for name in offered:
        after = sketch.at({"conv.vector": name}).schedule.kernel
        verify(after)
        for a, *both in zip(want, results(after), native(after), strict=True):
            for b in both:
                np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5)


def test_vectors_are_whole_where_the_innermost_dimension_is_short():
    found = shuffled(side=2, channels=8)
    point = found.sketch({found.weights, found.bias}).default()
    assert point.values["conv.vector"] == "c"
    assert "for y.c.i in 4 vector" in repr(point.schedule.kernel)


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4", "aarch64"])
def test_every_processor_prefers_whole_vectors(level):
    found = shuffled(side=2, channels=48)
    at = Context(machine(level), {found.weights, found.bias})
    kernel = plain(found.computations)
    point = sketches(kernel, found.computations, at)[0].default()
    assert point.values["conv.vector"] == "c"


def test_the_weights_must_be_constants():
    """Others would be read strided, or packed on every run."""
    found = shuffled(channels=8)
    assert "c" not in found.offered({found.bias})


@pytest.mark.parametrize("residual", ["pcij", "cpij"])
def test_what_the_map_adds_must_be_contiguous_or_constant(residual):
    found = shuffled(channels=8, residual=residual)
    assert "c" not in found.offered({found.weights, found.bias})


def test_a_strided_bias_must_be_constant():
    found = shuffled(channels=8)
    assert "c" not in found.offered({found.weights})


@pytest.mark.parametrize("axes", ["pic", "cpi"])
def test_rows_must_share_what_is_read_along_the_columns(axes):
    """Both operands depend on each channel: no row of a tile would reuse a column."""
    extents = {"p": 7, "c": 8, "i": 2}
    x, w = Buffer("X", (7, 8, 5), float32), Buffer("W", (8, 2, 5), float32)
    t = Buffer("T", tuple(extents.values()), float32)
    y = Buffer("Y", tuple(extents[a] for a in axes), float32)

    def stored(p, c, i):
        at = {"p": p, "c": c, "i": i}
        return tuple(at[a] for a in axes)

    computations = [
        reduce_("conv", t, (5,), "add", lambda p, c, i, k: x[p, c, k] * w[c, i, k]),
        map_("y", y, lambda p, c, i: t[p, c, i] * 2.0, extents=t.shape, index=stored),
    ]
    assert Shuffled(computations, w, x).offered({x, w}) == ("i", "p")


def test_a_part_of_an_axis_is_not_transposed():
    """Rows of channels and places as one axis: what stores a transposed tile knows whole axes."""
    x, w = Buffer("X", (7, 5), float32), Buffer("W", (8, 2, 5), float32)
    t, y = Buffer("T", (7, 8, 2), float32), Buffer("Y", (7, 16), float32)

    def stored(p, c, i):
        return p, c * 2 + i

    computations = [
        reduce_("conv", t, (5,), "add", lambda p, c, i, k: x[p, k] * w[c, i, k]),
        map_("y", y, lambda p, c, i: t[p, c, i] * 2.0, extents=t.shape, index=stored),
    ]
    assert Shuffled(computations, w, x).offered({w}) == ("i", "p")
