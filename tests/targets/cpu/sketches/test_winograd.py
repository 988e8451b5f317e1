"""The sketch of Winograd's convolution: every point of it keeps the result; where it pays."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.base import events
from tilewright.base.dtypes import float32
from tilewright.compute.build import map_, padded, reduce_
from tilewright.compute.merge import merge_dims
from tilewright.compute.nodes import Computation
from tilewright.compute.transforms import follow, inline
from tilewright.compute.winograd import winograd
from tilewright.expr.nodes import Buffer, Max, const
from tilewright.loops import interp
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.loops.verify import verify
from tilewright.schedule import replay
from tilewright.schedule.space.patterns import classify
from tilewright.targets.cpu.cost import cost_model
from tilewright.targets.cpu.machine import machine
from tilewright.targets.cpu.sketches import Context, default, sketches
from tilewright.targets.cpu.sketches.winograd import (
    Shape,
    _exchanged,
    _panels,
    _usual,
    rows_of_block,
    winograd_cycles,
    winograd_is_profitable,
)

Program = tuple[list[Computation], list[Buffer], Buffer, Buffer]

COSTS = cost_model(machine("x86-64-v4"))


def layer(
    n: int, h: int, w: int, depth: int, width: int, m: int = 2, stride: int = 1
) -> Program:
    """relu(conv(x) + x's own channel 0), channel-last, padded by 1; h, w: of the results."""
    sides = (stride * (h - 1) + 1, stride * (w - 1) + 1)
    shapes = {"x": (n, *sides, depth), "g": (width, depth, 3, 3)}
    x, g = (Buffer(name, shape, float32) for name, shape in shapes.items())
    t, y = (Buffer(name, (n, h, w, width), float32) for name in "ty")
    conv = reduce_(
        "conv",
        t,
        (depth, 3, 3),
        "add",
        lambda b, p, q, m, c, i, j: (
            padded(x, (b, p * stride + i - 1, q * stride + j - 1, c), 0.0)
            * g[m, c, i, j]
        ),
    )
    relu = map_(
        "relu",
        y,
        lambda b, p, q, m: Max(t[b, p, q, m] + x[b, p, q, 0], const(0, float32)),
    )
    behind, parts = follow(conv, relu), winograd(conv, m)
    assert behind is not None and parts is not None
    result = inline(parts[-1], behind)
    assert result is not None
    group, views = merge_dims([*parts[:-1], result])
    return (
        list(group),
        [views.get(b, b) for b in (x, g)],
        views.get(y, y),
        views.get(g, g),
    )


def run(kernel: Kernel, out: Buffer) -> Any:
    rng = np.random.default_rng(3)
    data = {b: rng.standard_normal(b.shape).astype(np.float32) for b in kernel.params}
    data[out][...] = np.nan
    interp.run(kernel, data)
    return data[out]


SHAPES = [
    (1, 6, 6, 16, 32, 2),
    (1, 5, 7, 20, 16, 2),
    (2, 4, 5, 16, 48, 2),
    (1, 3, 8, 7, 8, 2),
    (1, 8, 6, 5, 16, 4),
    (2, 5, 7, 3, 16, 4),
    (1, 5, 6, 7, 16, 2, 2),
    (1, 6, 5, 18, 52, 2),
    (1, 5, 6, 9, 36, 2),
    (1, 4, 4, 3, 80, 2),
    (1, 4, 3, 3, 134, 2),
]


# both tiles, both levels
@pytest.mark.representatives(
    "(2, 5, 7, 3, 16, 4)-x86-64-v4", "(1, 6, 5, 18, 52, 2)-x86-64-v3"
)
@pytest.mark.parametrize("level", ["x86-64-v4", "x86-64-v3"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_keeps_the_result(shape: tuple[int, ...], level: str) -> None:
    group, inputs, out, weights = layer(*shape)
    assert classify(group).name == "winograd"
    plain = lower("k", group, [*inputs, out], [out])
    at = Context(machine(level), {weights})
    if shape[4] < machine(level).lanes(float32):
        assert next(iter(sketches(plain, group, at))).name == "winograd"
        return
    with events.record() as log:
        s = default(plain, group, at)
    assert not [e for e in log if e.kind == "sketch-refused"]
    verify(s.kernel)
    np.testing.assert_allclose(
        run(s.kernel, out), run(plain, out), rtol=1e-4, atol=1e-4
    )
    assert str(replay(plain, s.trace)) == str(s.kernel)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", (0, 1, 4, 2, 6, 7))
def test_every_point_keeps_the_result(seed: int) -> None:
    r = random.Random(seed)
    group, inputs, out, weights = layer(*SHAPES[seed])
    plain = lower("k", group, [*inputs, out], [out])
    sketch = sketches(plain, group, Context(machine("x86-64-v3"), {weights}))[0]
    s = sketch.random(r).schedule
    verify(s.kernel)
    np.testing.assert_allclose(
        run(s.kernel, out), run(plain, out), rtol=1e-4, atol=1e-4
    )


def test_exact_arithmetic_forbids_it() -> None:
    group, inputs, out, weights = layer(*SHAPES[0])
    plain = lower("k", group, [*inputs, out], [out])
    names = [
        s.name
        for s in sketches(plain, group, Context(machine("x86-64-v4"), {weights}, True))
    ]
    assert not any("winograd" in n for n in names)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((1, 56, 56, 64, 64), True),
        ((1, 28, 28, 128, 128), True),
        ((1, 14, 14, 256, 256), True),
        ((1, 7, 7, 512, 512), True),
        ((1, 56, 56, 3, 64), False),
        ((1, 56, 56, 64, 3), False),
        ((1, 7, 7, 16, 16), False),
        ((1, 3, 3, 16, 64), False),
        ((1, 56, 56, 64, 64, 4), True),
        ((1, 5, 5, 512, 512, 4), False),
        ((1, 56, 56, 26, 26), True),
        ((1, 28, 28, 52, 52), True),
        ((1, 28, 28, 64, 134), True),  # 2 x 67, which are 5 vectors
        ((1, 28, 28, 128, 256, 2, 2), True),
        ((1, 14, 14, 128, 256, 2, 2), True),
        ((1, 7, 7, 512, 1024, 2, 2), False),
        ((1, 28, 28, 8, 256, 2, 2), False),
    ],
    ids=str,
)
def test_where_it_pays(shape: tuple[int, ...], expected: bool) -> None:
    assert winograd_is_profitable(classify(layer(*shape)[0]), COSTS) is expected


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((1, 56, 56, 64, 64), 4), ((1, 14, 14, 256, 256), 4), ((1, 5, 5, 512, 512), 2)],
    ids=str,
)
def test_the_model_chooses_the_tile(shape: Any, expected: int) -> None:
    """Few tiles read their weights too often: 36 numbers per filter instead of 16."""
    both = {m: winograd_cycles(classify(layer(*shape, m)[0]), COSTS) for m in (2, 4)}
    assert min(both, key=lambda m: both[m]) == expected


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (208, {1: 16, 13: 208}),  # 13 vectors
        (128, {1: 16, 2: 32, 4: 64}),
        (104, {2: 26, 4: 52, 7: 104}),  # not whole vectors
        (134, {5: 67, 9: 134}),
        (16, {1: 16}),
        (15, {}),  # less than a vector
    ],
)
def test_panels_are_several_vectors_or_all_channels(
    width: int, expected: dict[int, int]
) -> None:
    assert _panels(Shape(2, 1, 1, 7, 7, 64, width, 196), 16, COSTS) == expected


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((56, 52, 52), 4),  # of 2 vectors, which read less, a tile has no room for two
        ((14, 120, 120), 8),
        ((12, 304, 152), 5),  # in 3 vectors, 38 of 48 lanes count
        ((14, 184, 184), 6),  # all 12 leave nothing to share
        ((28, 64, 134), 9),
        ((28, 128, 128), 4),  # whole vectors
    ],
    ids=str,
)
def test_the_model_chooses_among_panels_that_are_not_whole(
    shape: tuple[int, int, int], expected: int
) -> None:
    side, depth, width = shape
    costs = cost_model(replace(machine("znver5"), cores=2))
    tiles = side // 2
    found = Shape(2, 1, 1, tiles, tiles, depth, width, side**2)
    assert _usual(found, _panels(found, 16, costs), 16, costs) == expected


@pytest.mark.parametrize("written", [1, 4])
def test_steps_of_its_products_are_written_out_where_that_gains(written: int) -> None:
    m = replace(machine("x86-64-v4"), measured=(("written", written),))
    group, inputs, out, weights = layer(1, 8, 8, 32, 32)
    plain = lower("k", group, [*inputs, out], [out])
    found = sketches(plain, group, Context(m, {weights}))[0].default()
    assert found.values["conv.product.unroll"] == written


@pytest.mark.parametrize(
    ("rows", "depth", "width", "expected"),
    [(28, 64, 64, 1), (14, 128, 128, 1), (7, 256, 256, 1), (4, 128, 32, 1)],
)
def test_blocks_are_small_where_their_weights_stream_in(
    rows: int, depth: int, width: int, expected: int
) -> None:
    """A block's memory is cold: one row of tiles fetches least of it."""
    shape = Shape(2, 1, 1, rows, rows, depth, width, (2 * rows) ** 2)
    assert rows_of_block(shape, 32, 16, COSTS) == expected


def test_blocks_are_larger_where_few_tiles_wait_for_their_weights() -> None:
    """16 MiB of weights for four tiles a block would take longer than their products."""
    shape = Shape(2, 1, 1, 4, 4, 512, 512, 49)
    assert rows_of_block(shape, 64, 16, COSTS) > 1


@pytest.mark.parametrize(
    ("shape", "free", "expected"),
    [
        ((1, 7, 7, 208, 208), True, False),
        ((1, 7, 7, 320, 320), True, False),
        ((1, 7, 7, 512, 512), True, True),  # the direct form waits for weights, too
        ((1, 14, 14, 208, 208), True, True),
        ((1, 5, 5, 64, 64), False, False),
    ],
    ids=str,
)
def test_few_tiles_do_not_pay_for_more_weights(
    shape: tuple[int, ...], free: bool, expected: bool
) -> None:
    """free: the answer if weights took no time to arrive."""
    zen5 = cost_model(replace(machine("znver5"), cores=2))
    pattern = classify(layer(*shape)[0])
    assert winograd_is_profitable(pattern, zen5) is expected
    assert winograd_is_profitable(pattern, replace(zen5, cold_byte=0.0)) is free


@pytest.mark.parametrize(("cores", "expected"), [(1, (2, 2)), (2, (1, 4))])
def test_cores_share_panels_where_each_would_wait_for_all_weights(
    cores: int, expected: tuple[int, int]
) -> None:
    """Rows of a block without and with a cost of the weights: one core reads them once anyway."""
    costs = cost_model(replace(machine("znver5"), cores=cores))
    shape = Shape(2, 1, 1, 4, 4, 320, 320, 49)
    free = replace(costs, cold_byte=0.0)
    found = tuple(rows_of_block(shape, 64, 16, c) for c in (free, costs))
    assert found == expected


def test_only_near_inputs_of_a_block_that_cores_share_are_exchanged() -> None:
    costs = cost_model(replace(machine("znver5"), cores=2))
    alone = cost_model(replace(machine("znver5"), cores=1))
    l2 = costs.machine.l2
    assert _exchanged(1, l2 / 4, l2 // 2, costs) == costs.exchanged
    assert _exchanged(1, l2, l2, costs) == costs.exchanged / 2
    assert _exchanged(2, l2 / 2, l2, costs) == 0  # each has its own
    assert _exchanged(1, l2 / 2, l2 // 2, alone) == 0
    assert _exchanged(1, l2, 4 * l2, costs) == 0  # displaced


@pytest.mark.parametrize(
    ("depth", "width", "expected"),
    [
        (64, 96, (7, 1)),
        (128, 128, (7, 1)),
        (256, 256, (7, 7)),  # another core's share has left its second cache
    ],
)
def test_cores_share_rows_where_inputs_would_go_from_one_to_the_other(
    depth: int, width: int, expected: tuple[int, int]
) -> None:
    """Seven rows of tiles are one more for one core; panels of channels are even, and all read what
    each has made. Rows of a block, with cheap exchanges and with dear ones."""
    zen5 = replace(machine("znver5"), cores=2)
    shape = Shape(2, 1, 1, 7, 7, depth, width, 196)
    found = tuple(
        rows_of_block(
            shape, width // 2, 16, replace(cost_model(zen5), exchanged=cycles)
        )
        for cycles in (0.05, 1.0)
    )
    assert found == expected


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize(
    ("rows", "depth", "width", "expected"),
    [(4, 512, 512, 4), (7, 512, 512, 7), (7, 256, 256, 1), (4, 512, 256, 2)],
)
def test_weights_that_no_cache_keeps_are_read_once(
    rows: int, depth: int, width: int, expected: int, lanes: int
) -> None:
    """At each width of vectors: those of half the width multiply twice as often per cycle."""
    shape = Shape(2, 1, 1, rows, rows, depth, width, (2 * rows) ** 2)
    assert rows_of_block(shape, 4 * lanes, lanes, COSTS) == expected
