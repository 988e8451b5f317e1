"""Vectors along other dimensions than the result's rows: offered where they can be, and right."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tests.targets.cpu.sketches.machines import Small
from tests.targets.cpu.sketches.test_sketches import native
from tilewright.base.dtypes import float32
from tilewright.base.errors import ScheduleError
from tilewright.compute.build import map_, padded, reduce_
from tilewright.compute.nodes import Computation
from tilewright.compute.transforms import follow
from tilewright.expr.nodes import Buffer
from tilewright.loops.verify import verify
from tilewright.targets.cpu.cost import cost_model
from tilewright.targets.cpu.machine import machine
from tilewright.targets.cpu.sketches import Context, sketches
from tilewright.targets.cpu.sketches.register_tile_model import (
    RowData,
    Tile,
    Window,
    best,
    gain,
)
from tilewright.targets.cpu.sketches.roles import started
from tilewright.testing.random_kernels import plain

COSTS = cost_model(machine("x86-64-v4"))


def convolution(
    depth: int, size: tuple[int, int], width: int, residual: bool = False
) -> tuple[list[Computation], Buffer]:
    """3x3 with channels first, a map behind it; the weights."""
    x, w = (
        Buffer("X", (depth, *size), float32),
        Buffer("W", (width, depth, 3, 3), float32),
    )
    t, y = (Buffer(n, (width, *size), float32) for n in "TY")
    b = Buffer("B", (width, *size) if residual else (width,), float32)

    def value(m, h, v, c, i, j):
        return padded(x, (c, h + i - 1, v + j - 1), 0.0) * w[m, c, i, j]

    total = reduce_("conv", t, (depth, 3, 3), "add", value)
    behind = map_(
        "y", y, lambda m, h, v: t[m, h, v] + (b[m, h, v] if residual else b[m])
    )
    aligned = follow(total, behind)
    assert aligned is not None
    return [total, aligned], w


@pytest.mark.covering(1)
@pytest.mark.parametrize("size", [(5, 6), (3, 13), (7, 4)], ids=str)
@pytest.mark.parametrize("width", [8, 11])
def test_both_choices_agree(size, width, results):
    computations, w = convolution(3, size, width)
    kernel = plain(computations)
    want = results(kernel)
    sketch = sketches(kernel, computations, Context(Small(), {w}))[0]
    (parameter,) = (p for p in sketch.default().parameters if p.name == "conv.vector")
    for name in parameter.candidates:
        after = sketch.at({"conv.vector": name}).schedule.kernel
        verify(after)
        assert ("transpose(" in repr(after)) == (name != parameter.candidates[0])
        for a, *both in zip(want, results(after), native(after), strict=True):
            for b in both:
                np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5)


def test_whole_vectors_of_channels_are_better_than_rows_that_are_not():
    for size, width, across in (((7, 5), 16, True), ((6, 16), 9, False)):
        computations, w = convolution(6, size, width)
        sketch = sketches(plain(computations), computations, Context(Small(), {w}))[0]
        assert ("transpose(" in repr(sketch.default().schedule.kernel)) == across


def test_no_choice_where_other_operands_lie_along_the_rows():
    for residual, constant in ((True, True), (False, False)):
        computations, w = convolution(6, (7, 5), 16, residual)
        at = Context(Small(), {w} if constant else ())
        sketch = sketches(plain(computations), computations, at)[0]
        assert "conv.vector" not in sketch.default().values
        with pytest.raises(ScheduleError, match=r"no parameter conv\.vector"):
            sketch.at({"conv.vector": "m"})


@dataclass(frozen=True, slots=True)
class Large(Small):
    """Holds in its second cache what `Small` does not."""

    l2: int = 1 << 20


def test_columns_from_behind_the_cache_are_read_by_fewer_tiles():
    computations, w = convolution(96, (6, 12), 16)
    kernel = plain(computations)
    for small, chosen in ((Small(), "m"), (Large(), "v")):
        sketch = sketches(kernel, computations, Context(small, {w}))[0]
        assert sketch.default().values["conv.vector"] == chosen


def depthwise(
    channels: int, size: tuple[int, int], taps: int, stride: int
) -> list[Computation]:
    """Channels first, with padding that keeps the size."""
    pad = taps // 2
    places = tuple((n + 2 * pad - taps) // stride + 1 for n in size)
    x, w = (
        Buffer("X", (channels, *size), float32),
        Buffer("W", (channels, taps, taps), float32),
    )
    y = Buffer("Y", (channels, *places), float32)

    def value(c, h, v, i, j):
        return (
            padded(x, (c, h * stride + i - pad, v * stride + j - pad), 0.0) * w[c, i, j]
        )

    return [reduce_("dw", y, (taps, taps), "add", value)]


@pytest.mark.covering(1)
@pytest.mark.parametrize("channels", [3, 9])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("taps", [3, 5])
def test_rows_of_a_depthwise_convolution_share_what_they_read(
    channels, stride, taps, results
):
    computations = depthwise(channels, (11, 13), taps, stride)
    kernel = plain(computations)
    point = sketches(kernel, computations, Context(Small()))[0].default()
    after = point.schedule.kernel
    verify(after)
    assert point.values["dw.order"] == ("j", "i") and point.values["dw.tile"][0] > 1
    assert "s.unroll('dw.i')" in str(point.schedule.trace)
    alone = repr(after).index("for Y.acc.w0") < repr(after).index("alloc X.pad")
    assert alone == (channels == 9)  # each core has several channels: each pads its own
    for a, *both in zip(results(kernel), results(after), native(after), strict=True):
        for b in both:
            np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5)


def test_tiles_of_windows_divide_the_rows_where_they_can():
    for taps, rows in ((7, 8), (3, 14)):
        data = RowData(streams=True, window=Window(taps, 1, 1))
        assert best([56], 56, 16, COSTS, data).rows == (rows,)


def test_vectors_that_rows_of_a_window_read():
    assert Window(3, 1, 1).distinct(4) == 6
    assert Window(3, 2, 1).distinct(4) == 9
    assert Window(3, 1, 2).distinct(4) == 8
    assert Window(2, 3, 1).distinct(2) == 4
    # The last of them were read before, where windows overlap.
    assert [Window(3, step, 1).new(4) for step in (1, 2, 3)] == [4, 8, 12]


@pytest.mark.parametrize(
    ("taps", "step", "rows"), [(3, 1, (2, 4)), (3, 2, (2, 4)), (5, 1, (1, 8))]
)
def test_windows_above_one_another_share_rows_unless_products_hide_them(
    taps, step, rows
):
    window = Window(taps, step, 1)
    alone = RowData(streams=True, window=window)
    data = replace(alone, above=window, filled=2.0)
    assert best([56, 56], 16, 16, COSTS, data).rows == rows
    assert best([56, 56], 16, 16, COSTS, alone).rows[0] == 1
    # Of two rows of four, six rows of four vectors are new for each tap of a window of five.
    lines = (2 - 1) * step + taps
    assert data.fills((2, 4), 1) == 2.0 * lines * 4 * step / taps**2


@pytest.mark.parametrize(
    ("channels", "step", "vectors"), [(1024, 1, 6), (1040, 1, 1), (512, 2, 8)]
)
def test_channels_a_power_of_two_apart_make_wider_tiles(channels, step, vectors):
    """Rows two steps apart are a way of the cache apart, and the windows' elements half of one."""
    x = Buffer("X", (6 * step + 3, 6 * step + 3, channels), float32)
    y = Buffer("Y", (7, 7, channels), float32)

    def value(h, v, c, i, j):
        return x[h * step + i, v * step + j, c]

    computations = [reduce_("pool", y, (3, 3), "max", value)]
    kernel = plain(computations)
    at = Context(replace(machine("x86-64-v4"), l1=32 << 10))
    found = sketches(kernel, computations, at)[0].default()
    assert found.values["pool.tile"][-1] == vectors


@pytest.mark.parametrize("step", [1, 3])
def test_windows_apart_share_nothing_above_one_another(step):
    x = Buffer("X", (56 * step + 2, 58, 16), float32)
    w, y = Buffer("W", (3, 3, 16), float32), Buffer("Y", (56, 56, 16), float32)

    def value(h, v, c, i, j):
        return x[h * step + i, v + j, c] * w[i, j, c]

    computations = [reduce_("dw", y, (3, 3), "add", value)]
    at = Context(machine("x86-64-v4"), {w})
    found = sketches(plain(computations), computations, at)[0].default()
    assert (found.values["dw.tile"][0] > 1) == (step == 1)


@pytest.mark.covering(1)
@pytest.mark.parametrize("stride", [1, 2, 4, 5])
@pytest.mark.parametrize("taps", [2, 3])
def test_pooling_with_channels_first_is_tiled_along_rows(taps, stride, results):
    pad = taps // 2
    size = tuple((n + 2 * pad - taps) // stride + 1 for n in (12, 31))
    x, y = Buffer("X", (9, 12, 31), float32), Buffer("Y", (9, *size), float32)

    def value(c, h, v, i, j):
        return padded(x, (c, h * stride + i - pad, v * stride + j - pad), float("-inf"))

    computations = [reduce_("pool", y, (taps, taps), "max", value)]
    kernel = plain(computations)
    found = sketches(kernel, computations, Context(Small()))[0]
    assert (found.name == "tiled") == (
        stride < 5
    )  # further apart, rows of the window are read
    after = found.default().schedule.kernel
    verify(after)
    assert ("alloc X.pad" in repr(after)) == (stride in (2, 4))  # lanes that lie apart
    for a, *both in zip(results(kernel), results(after), native(after), strict=True):
        for b in both:
            np.testing.assert_array_equal(b, a)


def test_windows_that_do_not_overlap_are_tiled_too(results):
    x, y = Buffer("X", (4, 12, 3, 13, 3), float32), Buffer("Y", (4, 12, 13), float32)
    computations = [
        reduce_("sum", y, (3, 3), "add", lambda c, h, v, i, j: x[c, h, i, v, j]),
    ]
    kernel = plain(computations)
    found = sketches(kernel, computations, Context(Small()))[0]
    assert found.name == "tiled"
    for a, b in zip(
        results(kernel), native(found.default().schedule.kernel), strict=True
    ):
        np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5)


def by_weights(taps: int, stride: int = 1, pad: int = 1) -> list[Computation]:
    """What flows to the weights of a convolution: neither operand is a constant."""
    size, c, m = 4, 18, 7
    out = (size * stride + 2 * pad - taps) // stride + 1
    x = Buffer("X", (2, c, size * stride, size * stride), float32)
    g = Buffer("G", (2, m, out, out), float32)
    w = Buffer("W", (m, c, taps, taps), float32)

    def value(j, i, k, v, n, h, q):
        at = (n, i, h * stride + k - pad, q * stride + v - pad)
        return padded(x, at, 0.0) * g[n, j, h, q]

    return [reduce_("conv", w, (2, out, out), "add", value)]


MACHINES = {
    "small": Small(),
    "sse": machine("x86-64-v2"),
    "avx2": machine("x86-64-v3"),
    "avx512": machine("x86-64-v4"),
}


@pytest.mark.covering(1)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("pad", [0, 1])
@pytest.mark.parametrize("name", MACHINES)
def test_columns_of_a_gradient_by_weights_fill_vectors(name, pad, stride, results):
    """Three taps do not: channels go along the vectors, and the padded copy has them last."""
    computations = by_weights(3, stride, pad)
    kernel = plain(computations)
    want = results(kernel)
    at = Context(MACHINES[name], set())
    sketch = sketches(kernel, computations, at)[0]
    (parameter,) = (p for p in sketch.default().parameters if p.name == "conv.vector")
    assert parameter.candidates == ("v", "j", "i")
    if at.machine.lanes(float32) > 4:  # three of four lanes are not few
        assert parameter.default != "v"
    for chosen in parameter.candidates:
        after = sketch.at({"conv.vector": chosen}).schedule.kernel
        verify(after)
        for a, b in zip(want, results(after), strict=True):
            np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5)
        if pad and stride == 1 and chosen == "i":
            assert "X.pad: float32[2, 6, 6, 18]" in repr(after)


def test_operands_that_are_no_constants_stay_where_the_taps_fill_a_vector():
    computations = by_weights(4, pad=2)
    sketch = sketches(plain(computations), computations, Context(Small(), set()))[0]
    assert not [p for p in sketch.default().parameters if p.name == "conv.vector"]


def smoothed(taps: int, height: int = 21, width: int = 13) -> list[Computation]:
    """An image, each column weighted along its own neighbors above and below."""
    x = Buffer("X", (height + taps - 1, width), float32)
    w, y = Buffer("W", (taps,), float32), Buffer("Y", (height, width), float32)
    return [
        reduce_("s", y, (taps,), "add", lambda i, j, n: x[i + n, j] * w[n]),
    ]


def parts_summed(count: int) -> list[Computation]:
    x = Buffer("X", (count, 21, 13), float32)
    y = Buffer("Y", (21, 13), float32)
    return [reduce_("s", y, (count,), "add", lambda i, j, n: x[n, i, j])]


def few_products(count: int) -> list[Computation]:
    x, w = Buffer("X", (21, count), float32), Buffer("W", (count, 13), float32)
    y = Buffer("Y", (21, 13), float32)
    return [reduce_("s", y, (count,), "add", lambda i, j, n: x[i, n] * w[n, j])]


@pytest.mark.parametrize(
    ("computations", "steps"),
    [
        (smoothed(16), 8),  # of a long window, as many as may be written out
        (smoothed(21), 7),
        (parts_summed(2), 2),
        (parts_summed(4), 4),
        (parts_summed(8), 1),
        (few_products(3), 1),
    ],
)
def test_steps_that_are_written_out(computations, steps, results):
    kernel = plain(computations)
    point = sketches(kernel, computations, Context(Small()))[0].default()
    assert point.values["s.unroll"] == steps
    after = point.schedule.kernel
    verify(after)
    for a, *both in zip(results(kernel), results(after), native(after), strict=True):
        for b in both:
            np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(
    ("channels", "depth", "across"),
    [(3, 4, True), (4, 3, True), (7, 1, False), (15, 3, False)],
)
def test_short_rows_of_results_leave_tiles_transposed(
    channels: int, depth: int, across: bool, level: str
) -> None:
    """Four channels are two stores of a transposed vector; fifteen make a register almost whole."""
    x, w = Buffer("X", (depth, 4096), float32), Buffer("W", (channels, depth), float32)
    y = Buffer("Y", (4096, channels), float32)
    c = reduce_("t", y, (depth,), "add", lambda p, j, k: x[k, p] * w[j, k])
    point = sketches(plain([c]), [c], Context(machine(level), {w}))[0].default()
    assert (point.values.get("t.vector") == "p") == across


def test_a_transposed_vector_is_stored_in_parts() -> None:
    """Squares of its tile have sides of powers of two: seven rows are four, two, and one."""
    data = RowData(crossed=True)
    steps = [data.leaving(Tile((m,), 1, 16), True) for m in (32, 16, 8, 4, 2, 6, 7)]
    assert steps == pytest.approx([2, 2, 3, 5, 9, 1 + 16 / 3, 1 + 3 * 16 / 7])
    assert data.leaving(Tile((2, 8), 1, 16), True) == 2


@pytest.mark.parametrize(
    ("masks", "steps"), [(False, [1, 4, 1, 3, 2, 1]), (True, [1, 2, 1, 2, 2, 1])]
)
def test_a_part_of_a_register_is_stored_under_a_mask_or_in_parts(
    masks: bool, steps: list[int]
) -> None:
    tiles = [Tile((8,), 1, lanes) for lanes in (16, 15, 8, 7, 6, 1)]
    assert [RowData().leaving(t, masks) for t in tiles] == steps


@pytest.mark.parametrize("change", [{"line": 1.0}, {"evicted": 1.0}, {"stored": 1.0}])
def test_every_cost_of_leaving_a_tile_counts(change: dict[str, float]) -> None:
    shape = [64], 64, 16, COSTS
    assert gain(*shape, RowData(crossed=True, **change)) < 0.97 * gain(
        *shape, RowData()
    )


@pytest.mark.parametrize(
    ("columns", "steps", "tile"),
    [(64, 3, (5, 2)), (64, 256, (6, 2)), (7, 3, (4, 1)), (7, 256, (14, 1))],
)
def test_tiles_of_few_steps_are_small(
    columns: int, steps: int, tile: tuple[int, ...]
) -> None:
    """The core begins the next one while the results of one are stored; and it stores them as fast
    as it can, if a result takes three stores and three products."""
    costs = cost_model(machine("x86-64-v3"))
    data = RowData(stored=costs.stored / steps, column=4 * steps)
    assert best([840], columns, 8, costs, data).value == tile


@pytest.mark.parametrize(
    ("steps", "change", "rows"),
    [
        (4, {}, {28, 12, 7}),
        (4, {"streams": True}, {28}),
        (4096, {}, {28}),
        (0, {}, {28}),
    ],
)
def test_a_tile_is_begun_early_if_the_core_begins_more_than_one(
    steps: int, change: dict[str, bool], rows: set[int]
) -> None:
    """Not if one has more instructions than that, and not if rows stream. What a vector of this
    dimension gains assumes that none is begun early."""
    costs = [replace(COSTS, begun=n) for n in (1, 320, 1000)]
    data = RowData(stored=COSTS.stored / max(1, steps), column=4 * steps, **change)
    assert {best([840], 16, 16, c, data).rows[0] for c in costs} == rows
    assert len({gain([840], 16, 16, c, data) for c in costs}) == 1


def test_columns_of_an_image_of_whole_pages_evict_one_another() -> None:
    """Then neither its channels stay in the cache, which each tile reads again, nor its results."""
    chosen = []
    for width in (1024, 1024 + 16):
        x, w = Buffer("X", (160, width), float32), Buffer("W", (512, 160), float32)
        y = Buffer("Y", (512, width), float32)
        c = reduce_("t", y, (160,), "add", lambda j, p, k, x=x: w[j, k] * x[k, p])
        at = Context(machine("x86-64-v3"), {w})
        chosen.append(sketches(plain([c]), [c], at)[0].default().values["t.vector"])
    assert chosen == ["p", "j"]


@pytest.mark.parametrize(
    ("change", "chosen"),
    [
        ({}, (8, 3)),
        ({"columns": 832}, (8, 2)),  # a step's columns are in sets of their own
        ({"rows": 4}, (4, 6)),
        ({"rows": 63}, (9, 3)),
        ({"rows": 88}, (11, 2)),  # they may be copied
        ({"constant": True}, (8, 2)),  # packed when the kernel is compiled
        ({"strided": True}, (8, 2)),  # packed on each run
        ({"depth": 256}, (8, 2)),  # the second cache has them all
        ({"reducer": "max"}, (8, 2)),
    ],
    ids=str,
)
def test_columns_of_whole_pages_are_read_in_wide_tiles(
    change: dict[str, Any], chosen: tuple[int, ...]
) -> None:
    """Those of a few rows, where what is fetched ahead of a step is displaced before it is read."""
    asked = {"rows": 8, "depth": 512, "columns": 1024, "reducer": "add", **change}
    m, k, n = asked["rows"], asked["depth"], asked["columns"]
    apart = 2 if "strided" in change else 1
    x, w = Buffer("X", (m, k), float32), Buffer("W", (k, n * apart), float32)
    y = Buffer("Y", (m, n), float32)

    def value(i, j, step):
        return x[i, step] * w[step, j * apart]

    c = reduce_("t", y, (k,), asked["reducer"], value)
    at = Context(machine("znver5"), {w} if "constant" in change else ())
    found = [s for s in sketches(plain([c]), [c], at) if s.name == "tiled"]
    assert found[0].default().values["t.tile"] == chosen


def test_a_part_of_a_register_issues_as_the_whole() -> None:
    rates = [COSTS.multiply_rate(n, 4) for n in (16, 9, 8, 5, 4)]
    assert rates == [1, 1, 2, 2, 2]


def test_columns_of_results_start_new_lines() -> None:
    """Sixteen a page apart evict one another, four do not, and those side by side share lines."""
    at = Context(machine("x86-64-v4"))
    cases = ((32, 16), (1000, 16), (4096, 4), (4096, 16))
    taken = [started(pitch, columns, at) for pitch, columns in cases]
    assert taken == [0.0, COSTS.new_line, COSTS.new_line, COSTS.far_store]


def test_tall_tiles_start_fewer_lines() -> None:
    x, w = Buffer("X", (64, 56 * 56), float32), Buffer("W", (384, 64), float32)
    y = Buffer("Y", (384, 56 * 56), float32)
    c = reduce_("t", y, (64,), "add", lambda j, p, k: w[j, k] * x[k, p])
    point = sketches(plain([c]), [c], Context(machine("x86-64-v4"), {w}))[0].default()
    assert (point.values["t.vector"], point.values["t.tile"]) == ("j", (28, 1))


@pytest.mark.parametrize(
    ("known", "taps", "chosen"),
    [
        ("w", 1, "j"),
        ("w", 3, "j"),  # packed, each pixel would be written for nine windows
        ("w", 5, "j"),
        ("x", 5, "n"),  # constants are packed once, when the model is compiled
    ],
)
@pytest.mark.parametrize("level", ["znver4", "sapphirerapids"])
def test_a_batch_goes_along_vectors_if_packing_it_pays(
    level: str, known: str, taps: int, chosen: str
) -> None:
    """Of 64 images of one channel, whose six results fill less than half of a vector."""
    reach = 27 + taps
    x, w, y = (
        Buffer("x", (64, reach, reach), float32),
        Buffer("w", (6, taps, taps), float32),
        Buffer("y", (64, 28, 28, 6), float32),
    )
    c = reduce_(
        "conv",
        y,
        (taps, taps),
        "add",
        lambda n, i, k, j, p, q: x[n, i + p, k + q] * w[j, p, q],
    )
    at = Context(machine(level), {x if known == "x" else w})
    point = sketches(plain([c]), [c], at)[0].default()
    assert point.values.get("conv.vector", "j") == chosen
