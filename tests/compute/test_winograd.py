"""Winograd's law: equal to the direct sum on rationals and integers, in any layout and padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.base.dtypes import DType, float16, float32, float64
from tilewright.compute.build import cast, reduce_
from tilewright.compute.check import check
from tilewright.compute.guards import guarded, inside, read_or_zero
from tilewright.compute.interp import evaluate
from tilewright.compute.laws import order_dims, relayout
from tilewright.compute.nodes import Computation
from tilewright.compute.winograd import winograd
from tilewright.expr.nodes import INDEX, Buffer, Select, Var, const
from tilewright.graph.ops.windows import Windows

Pads = tuple[int, int, int, int]


def convolution(
    batch: int,
    size: tuple[int, int],
    channels: tuple[int, int],
    pads: Pads,
    *,
    kernel: tuple[int, int] = (3, 3),
    stride: int = 1,
    dilation: int = 1,
    dtype: DType = float32,
) -> tuple[Computation, Buffer, Buffer, Buffer]:
    depth, width = channels
    spans = [(k - 1) * dilation + 1 for k in kernel]
    outputs = tuple(
        (n + pads[a] + pads[a + 2] - spans[a]) // stride + 1 for a, n in enumerate(size)
    )
    x = Buffer("x", (batch, depth, *size), dtype)
    g = Buffer("g", (width, depth, *kernel), dtype)
    y = Buffer("y", (batch, width, *outputs), dtype)
    shape = Windows(size, kernel, (stride,) * 2, (dilation,) * 2, pads[:2], pads[2:], outputs)

    def value(n: Any, m: Any, p: Any, q: Any, c: Any, i: Any, j: Any) -> Any:
        data = shape.read(x, (n, c), shape.place((p, q), (i, j)), 0)
        wide = float32 if dtype is float16 else dtype
        return cast(data, wide) * cast(g[m, c, i, j], wide)

    return reduce_("conv", y, (depth, *kernel), "add", value), x, g, y


def integers(x: Buffer, g: Buffer) -> dict[Buffer, np.ndarray]:
    """Small ones, of the filter multiples of 4: every step in float32 is exact."""
    rng = np.random.default_rng(0)
    return {
        x: rng.integers(-8, 9, x.shape).astype(np.float32),
        g: 4 * rng.integers(-8, 9, g.shape).astype(np.float32),
    }


CASES: list[tuple[int, tuple[int, int], tuple[int, int], Pads]] = [
    (1, (6, 6), (4, 5), (1, 1, 1, 1)),
    (2, (5, 7), (3, 2), (0, 0, 0, 0)),
    (1, (4, 4), (2, 2), (1, 0, 0, 2)),
    (1, (3, 3), (2, 2), (1, 1, 1, 1)),
    (3, (5, 4), (3, 2), (0, 1, 0, 1)),
    (1, (7, 4), (2, 3), (2, 2, 1, 0)),
]


LARGE: list[tuple[int, tuple[int, int], tuple[int, int], Pads]] = [
    (1, (6, 5), (2, 3), (1, 1, 1, 1)),
    (2, (7, 7), (2, 2), (0, 0, 0, 0)),
    (1, (5, 4), (2, 2), (2, 1, 0, 2)),
]


@pytest.mark.parametrize(
    ("case", "tile"), [*((c, 2) for c in CASES), *((c, 4) for c in LARGE)], ids=str
)
@pytest.mark.parametrize("channel_last", [False, True])
def test_the_law_holds_in_any_layout_and_padding(case: Any, channel_last: bool, tile: int) -> None:
    """On small integers; for tiles of 2 every step is exact."""
    c, x, g, y = convolution(*case)
    data = integers(x, g)
    expected = evaluate([c], data)[y]
    order = (0, 2, 3, 1)
    if channel_last:
        last = {
            b: (Buffer(b.name, tuple(b.shape[a] for a in order), b.dtype), order) for b in (x, y)
        }
        c = order_dims(relayout(c, last))
        data[last[x][0]] = data.pop(x).transpose(order)
        expected, y = expected.transpose(order), last[y][0]
    found = winograd(c, tile)
    assert found is not None
    for part in found:
        check(part)
    assert [p.name for p in found] == ["conv.filter", "conv.input", "conv.product", "conv"]
    error = np.abs(evaluate(found, data)[y] - expected)
    assert error.max() <= (0 if tile == 2 else 1e-6 * np.abs(expected).max())


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 2},
        {"dilation": 2},
        {"kernel": (1, 3)},
        {"kernel": (5, 5)},
        {"dtype": float64},
        {"dtype": float16},
    ],
    ids=str,
)
def test_other_convolutions_stay_direct(options: dict[str, Any]) -> None:
    assert winograd(convolution(1, (8, 8), (2, 3), (1, 1, 1, 1), **options)[0]) is None


@pytest.mark.parametrize(
    ("size", "channels", "tile"),
    [((4, 8), (2, 3), 2), ((8, 8), (1, 3), 2), ((8, 8), (2, 1), 2), ((6, 8), (2, 3), 4)],
    ids=str,
)
def test_one_tile_or_one_channel_is_no_product_of_matrices(
    size: Any, channels: Any, tile: int
) -> None:
    assert winograd(convolution(1, size, channels, (0, 0, 0, 0))[0], tile) is None


def test_groups_products_of_data_and_other_reducers_stay_direct() -> None:
    x, g, y = (
        Buffer(n, s, float32) for n, s in (("x", (4, 8, 8)), ("g", (4, 3, 3)), ("y", (4, 6, 6)))
    )
    depthwise = reduce_(
        "dw", y, (3, 3), "add", lambda c, p, q, i, j: x[c, p + i, q + j] * g[c, i, j]
    )
    assert winograd(depthwise) is None
    pool = reduce_("pool", y, (3, 3), "max", lambda c, p, q, i, j: x[c, p + i, q + j] * 2.0)
    assert winograd(pool) is None
    a, b, t = (Buffer(n, (8, 8), float32) for n in "abt")
    matmul = reduce_("mm", t, (8,), "add", lambda i, j, k: a[i, k] * b[k, j])
    assert winograd(matmul) is None


def test_a_guarded_read_is_zero_exactly_outside() -> None:
    x = Buffer("x", (5,), float32)
    i = Var("i", INDEX)
    ranges = {i: (0, 6)}
    load = x[i - 1]
    assert len(inside(load, ranges)) == 2
    assert read_or_zero(guarded(load, ranges), ranges) is load
    assert guarded(load, {i: (1, 5)}) is load
    assert read_or_zero(load, ranges) is None
    narrow = Select(const(1) <= i, load, const(0, float32))
    assert read_or_zero(narrow, ranges) is None
    assert read_or_zero(narrow, {i: (0, 5)}) is load
    ones = Select(const(1) <= i, load, const(1, float32))
    assert read_or_zero(ones, {i: (0, 5)}) is None
