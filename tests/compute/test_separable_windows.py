"""Windows reduced along one axis after another: equal to all of a window at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.compute.memory import same
from tilewright.base.dtypes import DType, bool_, float32, float64, int8, int64
from tilewright.compute.build import cast, padded, reduce_
from tilewright.compute.check import check
from tilewright.compute.interp import evaluate
from tilewright.compute.nodes import PS, PW, Computation, Dim, Output
from tilewright.compute.reducer import Reducer, arg_reducer, reducer
from tilewright.compute.regions import read
from tilewright.compute.separable_windows import separate
from tilewright.expr.nodes import INDEX, Buffer, Expr, Select, Var, const
from tilewright.graph.ops.windows import Windows

OUTSIDE = {"max": float("-inf"), "min": float("inf"), "add": 0.0}
Axis = tuple[
    int, int, int, int, int, int
]  # extent, window, stride, dilation, before, after


def pool(axes: Sequence[Axis], op: str = "max") -> Computation | None:
    """A pooling of two channels along these axes; None where it has no results."""
    outputs = tuple((n + a + b - (k - 1) * d - 1) // s + 1 for n, k, s, d, a, b in axes)
    if min(outputs) < 1:
        return None
    size, kernel, strides, dilations, begin, end = zip(*axes, strict=True)
    shape = Windows(size, kernel, strides, dilations, begin, end, outputs)
    x, y = Buffer("x", (2, *size), float32), Buffer("y", (2, *outputs), float32)
    rank = len(axes)

    def value(c: Any, *i: Any) -> Any:
        return shape.read(x, (c,), shape.place(i[:rank], i[rank:]), OUTSIDE[op])

    return reduce_("pool", y, kernel, op, value)


def agrees(c: Computation) -> bool:
    """Whether the law applies; if it does, both forms must agree, NaN included."""
    parts = separate(c)
    if parts is None:
        return False
    x, y = c.accesses[0].buffer, c.outputs[0].tensor
    data = np.random.default_rng(0).integers(-9, 9, x.shape).astype(np.float32)
    if c.reducer is not None and c.reducer.name != "add":
        data.flat[::7] = np.nan
        data.flat[3::11] = np.inf
    for part in parts:
        check(part)
    np.testing.assert_array_equal(
        evaluate(parts, {x: data})[y], evaluate(c, {x: data})[y]
    )
    return True


AXES = st.tuples(
    *(st.integers(3, 9), st.integers(1, 4), st.integers(1, 3), st.integers(1, 2)),
    *(st.integers(0, 2), st.integers(0, 2)),
)


@given(st.lists(AXES, min_size=1, max_size=3), st.sampled_from(sorted(OUTSIDE)))
def test_any_windows(axes: list[Axis], op: str) -> None:
    c = pool(axes, op)
    if c is not None:
        agrees(c)


@pytest.mark.parametrize("op", OUTSIDE)
@pytest.mark.parametrize("stride, dilation", [(1, 1), (2, 1), (2, 2)], ids=str)
def test_where_windows_share(op: str, stride: int, dilation: int) -> None:
    c = pool([(9, 3, stride, dilation, 1, 1)] * 2, op)
    assert c is not None and agrees(c)


def test_it_is_fewer_terms() -> None:
    c = pool([(9, 3, 1, 1, 1, 1)] * 2)
    assert c is not None
    parts = separate(c)
    assert parts is not None
    assert [tuple(d.extent for d in p.dims) for p in parts] == [
        (2, 9, 11, 3),
        (2, 9, 9, 3),
    ]


@pytest.mark.parametrize(
    "axes",
    [
        [(9, 3, 1, 1, 1, 1)],  # along one axis only
        [(8, 2, 2, 1, 0, 0)] * 2,  # no window shares anything with its neighbor
        [(9, 3, 1, 2, 2, 2)] * 2,  # a place is half a step
        [(9, 3, 3, 1, 0, 0), (9, 1, 1, 1, 0, 0)],  # windows of one row
    ],
    ids=["one axis", "apart", "half a step", "one row"],
)
def test_where_it_does_not_apply(axes: list[Axis]) -> None:
    c = pool(axes)
    assert c is not None and separate(c) is None


def test_a_step_of_one_point_is_none() -> None:
    """It is in an index, and moves nothing there."""
    x, y = Buffer("x", (9, 9, 4), float32), Buffer("y", (7, 7, 4), float32)
    c = reduce_("pool", y, (3, 3, 1), "max",
                lambda i, j, k, m, n, o: x[i + m, j + n, k + o])  # fmt: skip
    assert agrees(c)


def test_products_of_two_tensors_are_no_windows() -> None:
    x, w, y = (
        Buffer(n, s, float32) for n, s in (("x", (9, 9)), ("w", (3, 3)), ("y", (7, 7)))
    )
    c = reduce_("conv", y, (3, 3), "add", lambda i, j, m, n: x[i + m, j + n] * w[m, n])
    assert separate(c) is None


# -- for each condition a reduction that would go wrong without it

X, Y = Buffer("x", (9, 9), float32), Buffer("y", (7, 7), float32)
Value = Callable[[Expr, Expr, Expr, Expr], Expr]
PLACES = Buffer("p", (9,), int64)


def windows(
    value: Value, op: str | Reducer = "max", over: tuple[int, int] = (3, 3), **more: Any
) -> Computation:
    return reduce_("c", more.pop("out", Y), over, op, value, **more)


# Windows of x of any kind, and whether they go axis by axis.
VALUES: dict[str, tuple[Value, bool]] = {
    "windows": (lambda i, j, m, n: X[i + m, j + n], True),
    "axes in the other order": (lambda i, j, m, n: X[j + n, i + m], True),
    "one of another tensor": (lambda i, j, m, n: X[i + m, j + n] * Buffer("w", (3,), float32)[m],
                              False),
    "a read at two places": (lambda i, j, m, n: X[i + m, j + n] - X[i, j], False),
    "the place in the value": (lambda i, j, m, n: X[i + m, j + n] + cast(n, float32), False),
    "on a diagonal": (lambda i, j, m, n: X[i + m, i + n], False),
    "steps of both in one axis": (lambda i, j, m, n: X[i + m, (i + m + j * 0 + n * 0) % 9], False),
    "one step in both axes": (lambda i, j, m, n: X[i + m, j + m], False),
    "two steps in one axis": (lambda i, j, m, n: Buffer("x", (11, 9), float32)[i + m + n, j],
                              False),
    "rows that go down along columns": (lambda i, j, m, n: Buffer("x", (10, 9), float32)
                                        [i + m + j // 4, j + n], False),
    "columns that go down along rows": (lambda i, j, m, n: Buffer("x", (9, 10), float32)
                                        [i + m, j + n + i // 4], False),
    "backwards": (lambda i, j, m, n: X[i + 2 - m, j + n], False),
    "from the end": (lambda i, j, m, n: X[i + m, 6 - j + n], False),
    "places that are read": (lambda i, j, m, n: X[i + m, PLACES[j + n]], False),
    "by halves": (lambda i, j, m, n: X[i // 2 + m, j + n], False),
    "all of a row": (lambda i, j, m, n: X[i + m, n], False),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_only_windows_of_one_read_are_separated(name: str) -> None:
    value, separated = VALUES[name]
    c = windows(value)
    parts = separate(c)
    assert (parts is not None) is separated
    if parts is not None:
        same([c], parts)


def within(at: Expr) -> Expr:
    return (const(0) <= at) & (at < const(9))


# Conditions of the read of x[h, w], beyond its edges too, what it is elsewhere, and whether windows
# go axis by axis.
GUARDS: dict[str, tuple[Callable[[Expr, Expr], Expr], float, bool]] = {
    "inside": (lambda h, w: within(h) & within(w), 0.0, True),
    "a number outside": (lambda h, w: within(h) & within(w), 5.0, True),
    "no number outside": (lambda h, w: within(h) & within(w), float("nan"), True),
    "a part of x": (lambda h, w: within(h) & within(w) & (w < const(6)), 0.0, False),
    "the lower triangle": (lambda h, w: within(h) & within(w) & (w <= h), 0.0, False),
}


@pytest.mark.parametrize("name", GUARDS)
def test_guards_say_what_is_inside(name: str) -> None:
    guard, outside, separated = GUARDS[name]

    def value(i: Expr, j: Expr, m: Expr, n: Expr) -> Expr:
        h, w = i + m - 1, j + n - 1
        return Select(guard(h, w), X[h, w], const(outside, float32))

    c = windows(value, out=Buffer("y", (9, 9), float32))
    parts = separate(c)
    assert (parts is not None) is separated
    if parts is not None:
        same([c], parts)


# Where in a tensor of 20 x 20 the results are, and whether they go axis by axis.
RESULTS: dict[str, tuple[Callable[[Expr, Expr], tuple[Expr | int, ...]], bool]] = {
    "a part": (lambda i, j: (i, j), True),
    "behind a border": (lambda i, j: (i + 3, j + 4), True),
    "turned": (lambda i, j: (j + 1, i), True),
    "every other": (lambda i, j: (i * 2, j), False),
    "in a row": (lambda i, j: (0, i + j * 0), False),
    "by both": (lambda i, j: (i + j, j), False),
    "by digits": (lambda i, j: (i // 4, i % 4 * 5 + j // 2), False),
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_go_where_they_went(name: str) -> None:
    index, separated = RESULTS[name]
    out = Buffer("y", (20, 20), float32)
    value: Value = lambda i, j, m, n: X[i + m, j + n]  # noqa: E731
    c = windows(value, out=out, extents=(7, 7), index=index)
    parts = separate(c)
    assert (parts is not None) is separated
    if parts is not None:
        same([c], parts)


def test_the_tensor_that_is_written_may_be_read() -> None:
    """Its other elements: all is read by the first part, before the second writes."""
    out = Buffer("y", (20, 9), float32)
    value: Value = lambda i, j, m, n: out[i + m, j + n]  # noqa: E731
    c = windows(value, out=out, extents=(7, 7), index=lambda i, j: (i + 10, j + 1))
    parts = separate(c)
    assert parts is not None and out not in parts[1].inputs
    same([c], parts)


def deep(stride: int, places: int, along: bool = True) -> Computation:
    """Windows along three axes; results have those places of the second as an axis, or not."""
    x, y = Buffer("x", (9, 9, 12), float32), Buffer("y", (7, places, 8), float32)
    i, j, k, m, n, q = (Var(v, INDEX) for v in "ijkmnq")
    dims = (
        Dim(i, 7),
        Dim(j, places),
        Dim(k, 8),
        Dim(m, 3, PW),
        Dim(n, 2, PW),
        Dim(q, 5, PW),
    )
    index = (i, j if along else const(0), k)
    value = x[i + m, j * stride + n, k + q]
    return Computation("c", dims, (Output(y, index, value),), reducer("max", float32))


def test_a_place_that_results_have_no_axis_for_is_kept() -> None:
    for along in (True, False):
        c = deep(1, 1, along)
        parts = separate(c)
        assert (parts is not None) is along
        same([c], parts or [c])


def test_what_no_window_reads_is_not_read() -> None:
    """Elements between windows may not have been written yet."""
    for stride in (1, 2, 3):
        c = deep(stride, 3)
        parts = separate(c)
        assert (parts is not None) is (stride < 3)
        if parts is not None:
            (x,) = c.inputs
            np.testing.assert_array_equal(read(parts[0], x), read(c, x))
            same([c], parts)


@pytest.mark.parametrize("shape", [(0, 7), (7, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("stride", [1, 3])
def test_no_result_no_windows(shape: tuple[int, int], stride: int) -> None:
    x, y = Buffer("x", (9, 9), float32), Buffer("y", shape, float32)
    c = reduce_("c", y, (3, 2), "max", lambda i, j, m, n: x[i + m, j * stride + n])
    assert separate(c) is None


def first_of(x: Buffer) -> Reducer:
    """The first term that is not 0: associative, and the order counts."""
    a, b = Var("a", x.dtype), Var("b", x.dtype)
    zero = const(0, x.dtype)
    return Reducer(
        "first", (a,), (b,), (Select(a.eq(zero), b, a),), (zero,), commutative=False
    )


def test_an_operator_whose_order_counts_keeps_it() -> None:
    x, y = Buffer("x", (9, 9), int8), Buffer("y", (7, 7), int8)
    c = reduce_("c", y, (3, 3), first_of(x), lambda i, j, m, n: x[i + m, j + n])
    assert separate(c) is None


def test_several_results_stay_together() -> None:
    places, op = Buffer("q", (7, 7), int64), arg_reducer("argmax", float32, int64)
    value: Any = lambda i, j, m, n: (X[i + m, j + n], (i + m) * 9 + j + n)  # noqa: E731
    assert separate(reduce_("c", (Y, places), (3, 3), op, value)) is None


def test_scans_stay() -> None:
    """Sums of windows that are summed up would be summed up twice."""
    y = Buffer("y", (7, 7, 3), float32)
    c = windows(lambda i, j, m, n: X[i + m, j + n])
    index = tuple(d.var for d in c.dims[:3])
    dims = (*c.dims[:2], replace(c.dims[2], combine=PS), c.dims[3])
    (o,) = c.outputs
    assert (
        separate(replace(c, dims=dims, outputs=(replace(o, tensor=y, index=index),)))
        is None
    )
    x, t = Buffer("x", (9, 9, 3), float32), Dim(Var("t", INDEX), 3, PS)
    sums = windows(lambda i, j, m, n: x[i + m, j + n, t.var], "add")
    dims, (o,) = (*sums.dims[:2], t, *sums.dims[2:]), sums.outputs
    o = replace(o, tensor=y, index=(*o.index, t.var))
    assert separate(replace(sums, dims=dims, outputs=(o,))) is None


def test_a_sum_that_takes_nothing_up_counts() -> None:
    """A dimension that is reduced and indexes nothing multiplies the sum."""
    c = windows(lambda i, j, m, n: X[i + m, j + n], "add")
    assert separate(replace(c, dims=(*c.dims, Dim(Var("q", INDEX), 2, PW)))) is None


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        ("add", int8),
        ("mul", int8),
        ("min", int8),
        ("or", bool_),
        ("xor", bool_),
        ("max", float64),
    ],
)
def test_integers_wrap_and_truth_combines_alike(op: str, dtype: DType) -> None:
    x, y = Buffer("x", (9, 9), dtype), Buffer("y", (9, 9), dtype)
    outside = True if dtype is bool_ else 3

    def value(i: Expr, j: Expr, m: Expr, n: Expr) -> Expr:
        return padded(x, (i + m - 1, j + n - 1), outside)

    c = reduce_("c", y, (3, 3), op, value)
    parts = separate(c)
    assert parts is not None
    same([c], parts)


def test_a_sum_kept_wider_than_what_it_reads() -> None:
    x, y = Buffer("x", (9, 9), int8), Buffer("y", (7, 7), int8)
    wide = reduce_(
        "c", y, (3, 3), "add", lambda i, j, m, n: cast(x[i + m, j + n], int64)
    )
    parts = separate(wide)
    assert parts is not None and parts[0].outputs[0].tensor.dtype is int64
    same([wide], parts)
