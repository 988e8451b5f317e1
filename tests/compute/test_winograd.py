"""Winograd's law: equal to the direct sum on rationals and integers, in any layout and padding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tilewright.base.dtypes import DType, float16, float32, float64, int32
from tilewright.compute.build import cast, padded, reduce_
from tilewright.compute.check import check
from tilewright.compute.guards import guarded, inside, read_or_zero
from tilewright.compute.interp import evaluate, run
from tilewright.compute.nodes import PS, PW, Computation, Dim
from tilewright.compute.reducer import reducer
from tilewright.compute.regions import read
from tilewright.compute.transforms import order_dims, relayout
from tilewright.compute.winograd import winograd
from tilewright.expr.nodes import INDEX, Buffer, Expr, Select, Var, const
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
    shape = Windows(
        size, kernel, (stride,) * 2, (dilation,) * 2, pads[:2], pads[2:], outputs
    )

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


STRIDED: list[tuple[int, tuple[int, int], tuple[int, int], Pads]] = [
    (1, (8, 8), (4, 5), (1, 1, 1, 1)),
    (2, (8, 7), (3, 2), (0, 0, 0, 0)),
    (1, (9, 11), (2, 2), (1, 0, 0, 2)),
    (1, (10, 7), (2, 3), (2, 2, 1, 0)),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("case", "tile", "stride"),
    [
        *((c, 2, 1) for c in CASES),
        *((c, 4, 1) for c in LARGE),
        *((c, 2, 2) for c in STRIDED),
    ],
    ids=str,
)
@pytest.mark.parametrize("channel_last", [False, True])
def test_the_law_holds_in_any_layout_and_padding(
    case: Any, channel_last: bool, tile: int, stride: int
) -> None:
    """On small integers; for tiles of 2 every step is exact."""
    c, x, g, y = convolution(*case, stride=stride)
    data = integers(x, g)
    expected = evaluate([c], data)[y]
    order = (0, 2, 3, 1)
    if channel_last:
        last = {
            b: (Buffer(b.name, tuple(b.shape[a] for a in order), b.dtype), order)
            for b in (x, y)
        }
        c = order_dims(relayout(c, last))
        data[last[x][0]] = data.pop(x).transpose(order)
        expected, y = expected.transpose(order), last[y][0]
    found = winograd(c, tile)
    assert found is not None
    for part in found:
        check(part)
    assert [p.name for p in found] == [
        "conv.filter",
        "conv.input",
        "conv.product",
        "conv",
    ]
    error = np.abs(evaluate(found, data)[y] - expected)
    assert error.max() <= (0 if tile == 2 else 1e-6 * np.abs(expected).max())


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 3},
        {"stride": 2, "dilation": 2},
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
    [
        ((4, 8), (2, 3), 2),
        ((8, 8), (1, 3), 2),
        ((8, 8), (2, 1), 2),
        ((6, 8), (2, 3), 4),
    ],
    ids=str,
)
def test_one_tile_or_one_channel_is_no_product_of_matrices(
    size: Any, channels: Any, tile: int
) -> None:
    assert winograd(convolution(1, size, channels, (0, 0, 0, 0))[0], tile) is None


def test_groups_products_of_data_and_other_reducers_stay_direct() -> None:
    x, g, y = (
        Buffer(n, s, float32)
        for n, s in (("x", (4, 8, 8)), ("g", (4, 3, 3)), ("y", (4, 6, 6)))
    )
    depthwise = reduce_(
        "dw", y, (3, 3), "add", lambda c, p, q, i, j: x[c, p + i, q + j] * g[c, i, j]
    )
    assert winograd(depthwise) is None
    pool = reduce_(
        "pool", y, (3, 3), "max", lambda c, p, q, i, j: x[c, p + i, q + j] * 2.0
    )
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


# -- for each condition a sum of products that is not such a convolution

X, G, Y = (
    Buffer(n, s, float32)
    for n, s in (("x", (4, 9, 9)), ("g", (5, 4, 3, 3)), ("y", (5, 7, 7)))
)
BIAS = Buffer("bias", (9,), float32)
Value = Callable[..., Expr]


def agrees(c: Computation, tile: int = 2) -> bool:
    """Whether the law applies; where it does, memory is the same afterwards, on small integers."""
    parts = winograd(c, tile)
    if parts is None:
        return False
    rng = np.random.default_rng(0)
    given = {
        b: rng.integers(-4, 5, b.shape).astype(b.dtype.numpy) * 4 for b in c.inputs
    }
    ends = []
    for group in ((c,), parts):
        memory = {b: a.copy() for b, a in given.items()}
        for each in group:
            for o in each.outputs:
                memory.setdefault(o.tensor, np.full(o.tensor.shape, np.nan, np.float32))
        run(group, memory)
        ends.append(memory)
    for b, a in ends[0].items():
        np.testing.assert_allclose(ends[1][b], a, rtol=1e-5, atol=1e-3)
    return True


def image(*rest: int) -> Buffer:
    return Buffer("x", rest, float32)


# Values over k, p, q, c, i, j, and whether they are those of a convolution 3 x 3 of stride 1.
VALUES: dict[str, tuple[Value, bool]] = {
    "a convolution": (lambda k, p, q, c, i, j: X[c, p + i, q + j] * G[k, c, i, j], True),
    "the filter first": (lambda k, p, q, c, i, j: G[k, c, i, j] * X[c, p + i, q + j], True),
    "axes in any order": (lambda k, p, q, c, i, j: image(9, 4, 9)[q + j, c, p + i]
                          * Buffer("g", (3, 3, 5, 4), float32)[j, i, k, c], True),
    "the middle of the data": (lambda k, p, q, c, i, j: image(4, 13, 9)[c, p + i + 3, q + j]
                               * G[k, c, i, j], True),
    "its last rows": (lambda k, p, q, c, i, j: image(4, 12, 9)[c, p + i + 3, q + j]
                      * G[k, c, i, j], True),
    "one slice of the filters": (lambda k, p, q, c, i, j: X[c, p + i, q + j]
                                 * Buffer("g", (5, 2, 4, 3, 3), float32)[k, 1, c, i, j], True),
    "a sum": (lambda k, p, q, c, i, j: X[c, p + i, q + j] + G[k, c, i, j], False),
    "a product of three": (lambda k, p, q, c, i, j: X[c, p + i, q + j] * G[k, c, i, j]
                           * BIAS[c], False),
    "a bias in each term": (lambda k, p, q, c, i, j: X[c, p + i, q + j] * G[k, c, i, j]
                            + BIAS[k], False),
    "turned filters": (lambda k, p, q, c, i, j: X[c, p + i, q + j] * G[k, c, 2 - i, j], False),
    "stride 2": (lambda k, p, q, c, i, j: image(4, 15, 15)[c, p * 2 + i, q * 2 + j]
                 * G[k, c, i, j], True),
    "stride 2 of a part": (lambda k, p, q, c, i, j: image(4, 19, 16)[c, p * 2 + i + 3, q * 2 + j]
                           * G[k, c, i, j], True),
    "stride 2 along one axis": (lambda k, p, q, c, i, j: image(4, 15, 9)[c, p * 2 + i, q + j]
                                * G[k, c, i, j], False),
    "two strides": (lambda k, p, q, c, i, j: image(4, 15, 21)[c, p * 2 + i, q * 3 + j]
                    * G[k, c, i, j], False),
    "stride 2 of windows too": (lambda k, p, q, c, i, j: image(4, 17, 17)
                                [c, p * 2 + i * 2, q * 2 + j * 2] * G[k, c, i, j], False),
    "strided channels": (lambda k, p, q, c, i, j: image(8, 15, 15)[c * 2, p * 2 + i, q * 2 + j]
                         * G[k, c, i, j], False),
    "dilation 2": (lambda k, p, q, c, i, j: image(4, 11, 9)[c, p + i * 2, q + j] * G[k, c, i, j],
                   False),
    "backwards": (lambda k, p, q, c, i, j: X[c, p + 2 - i, q + j] * G[k, c, i, j], False),
    "along one axis": (lambda k, p, q, c, i, j: image(4, 9, 7, 3)[c, p + i, q, j]
                       * G[k, c, i, j], False),
    "windows over channels": (lambda k, p, q, c, i, j: image(6, 9, 9)[c + i, p + j, q]
                              * G[k, c, i, j], False),
    "three axes": (lambda k, p, q, c, i, j: image(8, 9, 9)[k + c, p + i, q + j] * G[k, c, i, j],
                   False),
    "on a diagonal": (lambda k, p, q, c, i, j: X[c, p + i, q + i] * G[k, c, i, j], False),
    "the same rows and columns": (lambda k, p, q, c, i, j: X[c, p + i, p + j] * G[k, c, i, j],
                                  False),
    "a filter per row": (lambda k, p, q, c, i, j: X[c, p + i, q + j]
                         * Buffer("g", (7, 5, 4, 3, 3), float32)[p, k, c, i, j], False),
    "a filter for all channels": (lambda k, p, q, c, i, j: X[c, p + i, q + j]
                                  * Buffer("g", (5, 3, 3), float32)[k, i, j], False),
    "one channel of the data": (lambda k, p, q, c, i, j: image(9, 9)[p + i, q + j]
                                * G[k, c, i, j], False),
    "a window that weights do not have": (lambda k, p, q, c, i, j: X[c, p + i, q + j]
                                          * Buffer("g", (5, 4, 3), float32)[k, c, i], False),
    "rows that depend on the column": (lambda k, p, q, c, i, j: image(4, 10, 9)
                                       [c, p + i + k // 4, q + j] * G[k, c, i, j], False),
    "a filter for upper and lower rows": (lambda k, p, q, c, i, j: X[c, p + i, q + j]
                                          * Buffer("g", (5, 4, 3, 3, 2), float32)
                                          [k, c, i, j, p // 4], False),
    "a group for each": (lambda k, p, q, c, i, j: image(5, 4, 9, 9)[k, c, p + i, q + j]
                         * G[k, c, i, j], False),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_only_convolutions_by_windows_of_three(name: str) -> None:
    value, transformed = VALUES[name]
    assert agrees(reduce_("conv", Y, (4, 3, 3), "add", value)) is transformed


def small(dtype: DType = float32, **changes: Any) -> Computation:
    """The convolution of x by g with something else."""
    x, g = Buffer("x", X.shape, dtype), Buffer("g", G.shape, dtype)
    y = Buffer("y", Y.shape, changes.pop("out", dtype))

    def value(k: Expr, p: Expr, q: Expr, c: Expr, i: Expr, j: Expr) -> Expr:
        return x[c, p + i, q + j] * g[k, c, i, j]

    made = reduce_("conv", y, (4, 3, 3), changes.pop("op", "add"), value)
    return replace(made, **changes)


def test_other_sums_and_types_stay_direct() -> None:
    assert agrees(small())
    assert not agrees(small(op="max"))
    assert not agrees(small(dtype=int32))
    assert not agrees(small(out=float64))
    one = replace(reducer("add", float32), identity=(const(1.0, float32),))
    assert not agrees(small(reducer=one))


def test_dimensions_of_several_points_take_part_and_none_is_empty() -> None:
    c = small()
    twice, once = (Dim(Var("r", INDEX), n, PW) for n in (2, 1))
    assert not agrees(replace(c, dims=(*c.dims, twice)))
    assert agrees(replace(c, dims=(*c.dims, once)))
    for n in range(len(c.dims)):
        empty = tuple(replace(d, size=0) if n == k else d for k, d in enumerate(c.dims))
        assert winograd(replace(c, dims=empty)) is None
    scan = (*c.dims[:3], replace(c.dims[3], combine=PS), *c.dims[4:])
    assert winograd(replace(c, dims=scan)) is None


# What an element beyond the edges is, and where reads are guarded.
PADDINGS: dict[str, tuple[Callable[[Expr, Expr, Expr], Expr], bool]] = {
    "zeros": (lambda c, h, w: padded(X, (c, h, w), 0.0), True),
    "zeros of the other sign": (lambda c, h, w: padded(X, (c, h, w), -0.0), True),
    "ones": (lambda c, h, w: padded(X, (c, h, w), 1.0), False),
    "no number": (lambda c, h, w: padded(X, (c, h, w), float("nan")), False),
    "a part of it": (lambda c, h, w: Select(h < const(5), padded(X, (c, h, w), 0.0),
                                            const(0.0, float32)), False),
    "of a larger tensor": (lambda c, h, w: Select(
        (const(0) <= h) & (h < const(9)) & (const(0) <= w) & (w < const(9)),
        image(4, 12, 9)[c, h, w], const(0.0, float32)), False),
}  # fmt: skip


@pytest.mark.parametrize("name", PADDINGS)
def test_what_is_outside_is_zero_and_only_that(name: str) -> None:
    read_, transformed = PADDINGS[name]
    y = Buffer("y", (5, 9, 9), float32)
    c = reduce_(
        "conv", y, (4, 3, 3), "add",
        lambda k, p, q, c, i, j: read_(c, p + i - 1, q + j - 1) * G[k, c, i, j],
    )  # fmt: skip
    assert agrees(c) is transformed


def shifted(channel: int, column: int, *, product: bool = False) -> Computation:
    """A convolution of a part of the channels by a part of the filters."""
    x, g = Buffer("x", (6, 6, 6), float32), Buffer("g", (7, 3, 3, 3), float32)

    def value(m: Any, p: Any, q: Any, c: Any, i: Any, j: Any) -> Expr:
        row = m + c if product else m + column
        return padded(x, (c + channel, p + i - 1, q + j - 1), 0.0) * g[row, c, i, j]

    y = Buffer("y", (4, 6, 6), float32)
    return reduce_("conv", y, (3, 3, 3), "add", value)


def test_parts_of_channels_and_filters_are_convolutions_too() -> None:
    for c in (shifted(3, 0), shifted(0, 2), shifted(2, 3)):
        x, g = sorted(c.inputs, key=lambda b: b.name, reverse=True)
        data = integers(x, g)
        expected = evaluate([c], data)
        found = winograd(c)
        assert found is not None
        (out,) = c.outputs
        got = evaluate(found, data)[out.tensor]
        np.testing.assert_array_equal(got, expected[out.tensor])


def test_filters_chosen_by_two_dimensions_stay_direct() -> None:
    assert winograd(shifted(0, 0, product=True)) is None


def test_weights_are_not_guarded() -> None:
    g = Buffer("g", (5, 4, 2, 3), float32)

    def value(k: Expr, p: Expr, q: Expr, c: Expr, i: Expr, j: Expr) -> Expr:
        return X[c, p + i, q + j] * Select(
            i < const(2), g[k, c, i, j], const(0.0, float32)
        )

    assert not agrees(reduce_("conv", Y, (4, 3, 3), "add", value))


def test_windows_are_along_two_axes_each_of_its_own() -> None:
    line, g = Buffer("y", (5, 7), float32), Buffer("g", (5, 4, 3), float32)
    same = reduce_("conv", line, (4, 3, 3), "add",
                   lambda k, p, c, i, j: X[c, p + i, p + j] * G[k, c, i, j])  # fmt: skip
    diagonal = reduce_("conv", Y, (4, 3), "add",
                       lambda k, p, q, c, i: X[c, p + i, q + i] * g[k, c, i])  # fmt: skip
    assert not any(map(agrees, (same, diagonal)))


# Data with an axis in front of a convolution's two; its window w, and how the data is read.
CLIP, FILM = image(4, 6, 9, 9), Buffer("y", (5, 4, 7, 7), float32)
FRONT: dict[str, tuple[tuple[int, ...], Value, bool]] = {
    "a window of three": ((3,), lambda f, p, q, c, t, i, j: CLIP[c, f + t, p + i, q + j], True),
    "a window of two": ((2,), lambda f, p, q, c, t, i, j: CLIP[c, f + t + 1, p + i, q + j], True),
    "zeros around": ((3,), lambda f, p, q, c, t, i, j: padded(
        image(4, 4, 7, 7), (c, f + t - 1, p + i - 1, q + j - 1), 0.0), True),
    "zeros in front only": ((3,), lambda f, p, q, c, t, i, j: padded(
        image(4, 4, 9, 9), (c, f + t - 2, p + i, q + j), 0.0), True),
    "ones around": ((3,), lambda f, p, q, c, t, i, j: padded(
        image(4, 4, 7, 7), (c, f + t - 1, p + i - 1, q + j - 1), 1.0), False),
    "channels last": ((3,), lambda f, p, q, c, t, i, j: image(6, 9, 9, 4)[f + t, p + i, q + j, c],
                      True),
    "stride 2": ((3,), lambda f, p, q, c, t, i, j: image(4, 9, 9, 9)[c, f * 2 + t, p + i, q + j],
                 False),
    "stride 2 of all": ((3,), lambda f, p, q, c, t, i, j:
                        image(4, 9, 15, 15)[c, f * 2 + t, p * 2 + i, q * 2 + j], False),
    "stride 2 of images": ((3,), lambda f, p, q, c, t, i, j:
                           image(4, 6, 15, 15)[c, f + t, p * 2 + i, q * 2 + j], True),
    "dilation 2": ((3,), lambda f, p, q, c, t, i, j: image(4, 8, 9, 9)[c, f + t * 2, p + i, q + j],
                   False),
    "stride 2 behind it": ((3,), lambda f, p, q, c, t, i, j:
                           image(4, 6, 15, 9)[c, f + t, p * 2 + i, q + j], False),
}  # fmt: skip


@pytest.mark.parametrize("name", FRONT)
def test_axes_in_front_keep_their_places(name: str) -> None:
    window, read, transformed = FRONT[name]
    w = Buffer("w", (5, 4, *window, 3, 3), float32)

    def value(k: Any, f: Any, p: Any, q: Any, c: Any, t: Any, i: Any, j: Any) -> Any:
        return read(f, p, q, c, t, i, j) * w[k, c, t, i, j]

    made = reduce_("conv", FILM, (4, *window, 3, 3), "add", value)
    assert agrees(made) is transformed


def test_a_window_in_front_is_in_the_weights_too() -> None:
    w = Buffer("w", (5, 4, 3, 3), float32)
    made = reduce_(
        "conv", FILM, (4, 3, 3, 3), "add",
        lambda k, f, p, q, c, t, i, j: CLIP[c, f + t, p + i, q + j] * w[k, c, i, j],
    )  # fmt: skip
    assert not agrees(made)


def test_tiles_with_an_axis_in_front_take_no_more_than_windows() -> None:
    w = Buffer("w", (5, 4, 3, 3, 3), float32)
    y = Buffer("y", (5, 4, 6, 7), float32)
    for rows, applies in ((8, True), (9, False)):
        x = image(4, 6, rows, 9)

        def value(
            k: Any, f: Any, p: Any, q: Any, c: Any, t: Any, i: Any, j: Any
        ) -> Any:
            return x[c, f + t, p + i, q + j] * w[k, c, t, i, j]

        made = reduce_("conv", y, (4, 3, 3, 3), "add", value)
        assert (winograd(made, 4) is not None) is applies


def test_two_axes_in_front() -> None:
    x, y = image(2, 4, 4, 6, 6), Buffer("y", (3, 3, 3, 4, 4), float32)
    w = Buffer("w", (3, 2, 2, 2, 3, 3), float32)
    made = reduce_(
        "conv", y, (2, 2, 2, 3, 3), "add",
        lambda k, e, f, p, q, c, s, t, i, j: (
            x[c, e + s, f + t, p + i, q + j] * w[k, c, s, t, i, j]
        ),
    )  # fmt: skip
    assert agrees(made)


def test_what_only_one_operand_has_is_kept() -> None:
    x, g = image(4, 2, 9, 9), Buffer("g", (5, 4, 3, 3, 2), float32)
    values: tuple[Value, ...] = (
        lambda k, p, q, c, r, i, j: x[c, r, p + i, q + j] * G[k, c, i, j],
        lambda k, p, q, c, r, i, j: X[c, p + i, q + j] * g[k, c, i, j, r],
    )
    for value in values:
        assert not agrees(reduce_("conv", Y, (4, 2, 3, 3), "add", value))


def test_a_scan_of_one_step_is_no_convolution() -> None:
    c, r = small(), Var("r", INDEX)
    (o,) = c.outputs
    out = Buffer("y", (*Y.shape, 1), float32)
    scan = replace(
        c, dims=(*c.dims[:3], Dim(r, 1, PS), *c.dims[3:]),
        outputs=(replace(o, tensor=out, index=(*o.index, r)),),
    )  # fmt: skip
    assert not agrees(scan)


@pytest.mark.covering(1)
@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize(("start", "behind"), [(0, 0), (0, 1), (3, 0), (3, 1), (3, 4)])
@pytest.mark.parametrize("rows", [5, 6, 7, 8])
def test_results_are_made_of_what_windows_read(
    rows: int, start: int, behind: int, tile: int
) -> None:
    """Behind the last window the data is another's: large, or no number."""
    x = Buffer("x", (4, start + rows + 2 + behind, 10), float32)
    y = Buffer("y", (5, rows, 8), float32)

    def value(k: Expr, p: Expr, q: Expr, c: Expr, i: Expr, j: Expr) -> Expr:
        return x[c, p + i + start, q + j] * G[k, c, i, j]

    c = reduce_("conv", y, (4, 3, 3), "add", value)
    parts = winograd(c, tile)
    assert (parts is not None) is (tile == 2 or rows in (7, 8) or not behind)
    if parts is None:
        return
    data = {b: a.astype(np.float32) for b, a in integers(x, G).items()}
    data[x][~read(c, x)] = np.nan
    want = evaluate([c], data)[y]
    np.testing.assert_allclose(
        evaluate(parts, data)[y], want, atol=1e-6 * np.abs(want).max()
    )


@pytest.mark.parametrize("behind", [0, 1, 4])
@pytest.mark.parametrize("rows", [5, 6])
def test_strided_results_are_made_of_what_windows_read(rows: int, behind: int) -> None:
    x = Buffer("x", (4, 2 * rows + 1 + behind, 15 + behind), float32)
    y = Buffer("y", (5, rows, 7), float32)

    def value(k: Expr, p: Expr, q: Expr, c: Expr, i: Expr, j: Expr) -> Expr:
        return x[c, p * 2 + i, q * 2 + j] * G[k, c, i, j]

    c = reduce_("conv", y, (4, 3, 3), "add", value)
    parts = winograd(c)
    assert parts is not None
    data = {b: a.astype(np.float32) for b, a in integers(x, G).items()}
    data[x][~read(c, x)] = np.nan
    np.testing.assert_array_equal(evaluate(parts, data)[y], evaluate([c], data)[y])


def test_the_tensor_that_is_written_may_be_read() -> None:
    """Other elements of it: all are read before the first result is written."""
    t = Buffer("t", (9, 9, 9), float32)

    def value(k: Expr, p: Expr, q: Expr, c: Expr, i: Expr, j: Expr) -> Expr:
        return t[c, p + i, q + j] * G[k, c, i, j]

    c = reduce_("conv", t, (4, 3, 3), "add", value, extents=(5, 7, 7),
                index=lambda k, p, q: (k + 4, p + 1, q + 1))  # fmt: skip
    assert not agrees(
        c
    )  # that it is a part of its tensor only is a choice, and no condition
