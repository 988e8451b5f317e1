"""Groups as functions of positions: what is one, and what is not, condition by condition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tilewright.base.dtypes import float32, int64
from tilewright.compute.nodes import Computation, Dim, Output
from tilewright.compute.reducer import reducer
from tilewright.expr.nodes import (
    INDEX,
    Buffer,
    Cast,
    Expr,
    Load,
    Max,
    Select,
    Var,
    const,
)
from tilewright.plan.positions import Positions, WindowAxis, in_rectangles, positions

N, H, W = (Var(name, INDEX) for name in "nhw")
B, K, L, J, C, P, Q = (Var(name, INDEX) for name in "bkljcpq")
X = Buffer("x", (N, H + 2, W + 2, 8), float32)
WEIGHT = Buffer("w", (3, 3, 8, 16), float32)
SUM = Buffer("sum", (N, H, W, 16), float32)
Y = Buffer("y", (N, H + 2, W + 2, 16), float32)
ROWS = Buffer("rows", (H,), int64)
PLACES = (Dim(B, N), Dim(K, H), Dim(L, W))


def convolution(
    read: Expr | None = None, index: tuple[Expr, ...] = (B, K, L, J)
) -> Computation:
    """sum = x * w, 3x3."""
    value = Load(X, (B, K + P, L + Q, C)) if read is None else read
    dims = (*PLACES, Dim(J, 16), Dim(P, 3, "pw"), Dim(Q, 3, "pw"), Dim(C, 8, "pw"))
    out = Output(SUM, index, value * Load(WEIGHT, (P, Q, C, J)))
    return Computation("conv", dims, (out,), reducer("add", float32))


def relu(
    value: Expr | None = None, index: tuple[Expr, ...] = (B, K + 1, L + 1, J)
) -> Computation:
    """y = max(sum, 0), inside of a border."""
    v = Max(Load(SUM, (B, K, L, J)), const(0.0, float32)) if value is None else value
    return Computation("relu", (*PLACES, Dim(J, 16)), (Output(Y, index, v),))


def found(
    *group: Computation, params: tuple[Buffer, ...] = (X, WEIGHT, ROWS, Y)
) -> Positions | None:
    return positions(group, params, (WEIGHT,))


def test_a_convolution_has_windows() -> None:
    made = found(convolution(), relu())
    assert made is not None
    (window,) = made.windows
    assert window.tensor is X and window.axes == (
        WindowAxis(0, 1, 0, 1),
        WindowAxis(1, 1, 0, 3),
        WindowAxis(2, 1, 0, 3),
        WindowAxis(None, 0, 0, 8),
    )
    assert made.counts == (N, H, W)
    assert made.shape(window, (1, 2, 4)) == (1, 2, 4, 3, 3, 8)
    assert made.shape(made.written[Y], (1, 2, 4)) == (1, 2, 4, 16)


X2 = Buffer("x2", (N, H + 2, W + 2, 16), float32)
TAP = Load(Buffer("taps", (3, 3, 16), float32), (P, Q, J))


def depthwise(load: Expr | None = None) -> Computation:
    """Each channel alone, without a sum over channels."""
    read = Load(X2, (B, K + P, L + Q, J)) if load is None else load
    c = convolution()
    dims = tuple(d for d in c.dims if d.var is not C)
    return replace(c, dims=dims, outputs=(Output(SUM, (B, K, L, J), read * TAP),))


def test_what_windows_of_a_rectangle_share_is_read_once() -> None:
    made = found(depthwise(), relu())
    assert made is not None and not made.boxes
    made = in_rectangles(made, 16)
    assert made.boxes
    (window,) = made.windows
    assert made.shape(window, (1, 2, 4)) == (1, 2 + 2, 4 + 2, 16)
    assert made.shape(made.written[Y], (1, 2, 4)) == (1, 2, 4, 16)
    part = Buffer("part", (1, 4, 6, 16), float32)
    some = made.some((1, 2, 4), {window: part, made.written[Y]: Y})
    (read,) = (a for a in some[0].accesses if a.buffer is part)
    assert read.index == (B, K + P, L + Q, J)


APART: dict[str, Computation] = {
    "elements that channels share": convolution(),
    "a window that moves backwards": depthwise(Load(X2, (B, const(9) - K, L + Q, J))),
    "a window that is read by two channels": depthwise(
        Load(X2, (B, K + P, L + Q, const(3)))
    ),
}


@pytest.mark.parametrize("name", APART)
def test_windows_that_stay_apart(name: str) -> None:
    made = found(APART[name], relu())
    assert made is not None, name
    assert not in_rectangles(made, 16).boxes


IMAGE = Buffer("image", (N, 8, H + 2, W + 15), float32)
COLUMNS = Buffer("columns", (3, 16, 8, 16), float32)


def of_image(width: int, column: Expr = L + Q) -> Positions | None:
    """The positions of a convolution by so many columns of an image whose channels are first."""
    c = convolution()
    dims = tuple(replace(d, size=width) if d.var is Q else d for d in c.dims)
    value = Load(IMAGE, (B, C, K + P, column)) * Load(COLUMNS, (P, Q, C, J))
    c = replace(c, dims=dims, outputs=(replace(c.outputs[0], value=value),))
    return positions((c, relu()), (IMAGE, COLUMNS, Y), (COLUMNS,))


@pytest.mark.parametrize(
    ("width", "column", "boxes"),
    [
        (1, L, True),
        (3, L + Q, True),
        (15, L * 2 + Q, True),
        (16, L + Q, False),  # long pieces
        (3, const(9) - L + Q, False),  # a window that moves backwards
        (3, Q, False),  # the same columns for all positions
    ],
    ids=str,
)
def test_short_pieces_that_neighbors_share_make_rectangles(
    width: int, column: Expr, boxes: bool
) -> None:
    made = of_image(width, column)
    assert made is not None and in_rectangles(made, 16).boxes == boxes


def test_windows_of_groups_make_rectangles() -> None:
    """Each of four channels reads what the others of its group do, and no other's."""
    made = found(depthwise(Load(X2, (B, K + P, L + Q, J // 4))), relu())
    assert made is not None and in_rectangles(made, 16).boxes


def test_windows_of_tiles_stay_apart() -> None:
    """Whose positions have several points."""
    made = found(depthwise(), relu())
    assert made is not None
    several = replace(made, steps=dict.fromkeys(made.steps, 2))
    assert not in_rectangles(several, 16).boxes


def test_windows_of_one_tensor_are_one() -> None:
    again = Load(SUM, (B, K, L, J)) + Load(X, (B, K + 1, L, const(3)))
    other = Load(X, (B, K, L + 2, const(1))) + again
    made = found(convolution(), relu(other))
    assert made is not None and len(made.windows) == 2  # one of each Computation
    axes = next(w.axes for w in made.windows if w.of.name == "relu")
    assert [(a.least, a.length) for a in axes] == [(0, 1), (0, 2), (0, 3), (1, 3)]


def test_a_read_is_guarded_by_its_own_tensor() -> None:
    x = Buffer("x", (N, H, W + 2, 8), float32)
    params = (x, WEIGHT, Y)
    at = K + P - 1
    load = Load(x, (B, at, L + Q, C))  # inside along one axis
    zero = const(0.0, float32)
    made = found(
        convolution(Select((const(0) <= at) & (at < H), load, zero)),
        relu(),
        params=params,
    )
    assert made is not None and made.windows[0].outside is zero
    assert made.windows[0].axes[1] == WindowAxis(1, 1, -1, 3)
    for part in (const(0) <= at, at < H, (const(1) <= at) & (at < H)):
        other = convolution(Select(part, load, zero))
        assert found(other, relu(), params=params) is None


def other_extent() -> Any:
    """A second visible result, over fewer rows."""
    few = (Dim(B, N), Dim(K, H - 1), Dim(L, W), Dim(J, 16))
    z = Buffer("z", (N, H, W, 16), float32)
    out = Output(z, (B, K, L, J), Load(SUM, (B, K, L, J)))
    return (convolution(), Computation("few", few, (out,)), relu()), (z,)


WRONG: dict[str, tuple[Computation, ...]] = {
    "a value that depends on the place": (
        convolution(),
        relu(Load(SUM, (B, K, L, J)) * Cast(K, float32)),
    ),
    "a value that depends on a size": (
        convolution(),
        relu(Load(SUM, (B, K, L, J)) * Cast(H, float32)),
    ),
    "a neighbor's sum": (convolution(), relu(Load(SUM, (B, K, L + 1, J)))),
    "the sums the other way around": (convolution(), relu(Load(SUM, (B, L, K, J)))),
    "a sum before it is there": (relu(), convolution()),
    "two places in one index": (convolution(Load(X, (B, K + L, L, C))), relu()),
    "backwards": (convolution(Load(X, (B, H - K, L, C))), relu()),
    "rows that memory tells": (
        convolution(Load(X, (B, Load(ROWS, (K,)), L, C))),
        relu(),
    ),
    "results with gaps": (convolution(), relu(index=(B, K * 2, L, J))),
    "results that a window overlaps": (convolution(), relu(index=(B, K + J, L, J))),
    "one result for all columns": (convolution(), relu(index=(B, K, const(0), J))),
    "a map": (relu(Load(X, (B, K, L, const(0)))),),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_function_of_positions(name: str) -> None:
    assert found(*WRONG[name]) is None


def test_each_visible_result_has_all_positions() -> None:
    group, more = other_extent()
    assert found(*group, params=(X, WEIGHT, Y, *more)) is None
    whole = replace(group[1], dims=(*PLACES, Dim(J, 16)))
    assert found(group[0], whole, relu(), params=(X, WEIGHT, Y, *more)) is not None


def test_a_reduction_over_places_has_none() -> None:
    c = convolution()
    summed = tuple(replace(d, combine="pw") if d.var is L else d for d in c.dims)
    out = replace(c.outputs[0], index=(B, K, const(0), J))
    assert found(replace(c, dims=summed, outputs=(out,)), relu()) is None
