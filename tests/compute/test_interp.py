"""The meaning of Computations against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.base import dtypes as d
from tilewright.base.errors import ExecutionError, InputError
from tilewright.compute import interp
from tilewright.compute.build import cast, map_, padded, reduce_
from tilewright.compute.interp import evaluate
from tilewright.compute.nodes import PS, PW, Computation, Dim, Output
from tilewright.compute.reducer import arg_reducer, reducer
from tilewright.expr.nodes import Buffer, var

F = d.float32
RNG = np.random.default_rng(0)


def small(*shape: int, dtype: type = np.float32) -> np.ndarray:
    """Small integers, so that every order of summation gives one result."""
    return RNG.integers(-4, 5, shape).astype(dtype)


def test_matmul_with_a_wide_accumulator() -> None:
    a, b = Buffer("a", (4, 8), d.int8), Buffer("b", (8, 6), d.int8)
    c = Buffer("c", (4, 6), d.int32)
    product = reduce_(
        "mm",
        c,
        (8,),
        "add",
        lambda i, j, k: cast(a[i, k], d.int32) * cast(b[k, j], d.int32),
    )
    x, y = small(4, 8, dtype=np.int8), small(8, 6, dtype=np.int8)
    expected = x.astype(np.int32) @ y.astype(np.int32)
    np.testing.assert_array_equal(evaluate(product, {a: x, b: y})[c], expected)


def test_padded_convolution() -> None:
    x, w, y = Buffer("x", (5, 5), F), Buffer("w", (3, 3), F), Buffer("y", (3, 3), F)
    conv = reduce_(
        "conv",
        y,
        (3, 3),
        "add",
        lambda h, v, r, s: padded(x, (h * 2 + r - 1, v * 2 + s - 1), 0.0) * w[r, s],
    )
    data, weights = small(5, 5), small(3, 3)
    wide = np.pad(data, 1)
    expected = [
        [(wide[2 * h : 2 * h + 3, 2 * v : 2 * v + 3] * weights).sum() for v in range(3)]
        for h in range(3)
    ]
    np.testing.assert_array_equal(evaluate(conv, {x: data, w: weights})[y], expected)


def test_scans() -> None:
    x, y = Buffer("x", (4, 5), F), Buffer("y", (4, 5), F)
    data = small(4, 5)
    along = reduce_(
        "cumsum",
        y,
        (5,),
        "add",
        lambda i, k: x[i, k],
        extents=(4,),
        combine=PS,
        index=lambda i, k: (i, k),
    )
    np.testing.assert_array_equal(evaluate(along, {x: data})[y], np.cumsum(data, 1))
    both = reduce_(
        "integral",
        y,
        (4, 5),
        "add",
        lambda i, k: x[i, k],
        extents=(),
        combine=PS,
        index=lambda i, k: (i, k),
    )
    np.testing.assert_array_equal(
        evaluate(both, {x: data})[y], data.cumsum(0).cumsum(1)
    )
    i, j, m = var("i"), var("j"), Buffer("m", (4,), F)
    dims = (Dim(i, 4, PS), Dim(j, 5, PW))
    blocks = Computation("mbbs", dims, (Output(m, (i,), x[i, j]),), reducer("add", F))
    np.testing.assert_array_equal(evaluate(blocks, {x: data})[m], data.sum(1).cumsum())


def test_argmax_takes_the_first_and_treats_nan_as_extreme() -> None:
    x, v, p = Buffer("x", (2, 6), F), Buffer("v", (2,), F), Buffer("p", (2,), d.int64)
    best = reduce_(
        "best",
        (v, p),
        (6,),
        arg_reducer("argmax", F, d.int64),
        lambda i, k: (x[i, k], k),
    )
    data = np.array([[1, 5, 2, 5, 0, 1], [1, np.nan, 9, np.nan, 0, 1]], np.float32)
    np.testing.assert_array_equal(evaluate(best, {x: data})[p], np.argmax(data, 1))


def test_gather_is_checked() -> None:
    x, at, y = (
        Buffer("x", (4, 3), F),
        Buffer("at", (2,), d.int64),
        Buffer("y", (2, 3), F),
    )
    gather = map_("gather", y, lambda i, j: x[at[i], j])
    data = small(4, 3)
    np.testing.assert_array_equal(
        evaluate(gather, {x: data, at: np.array([3, 1])})[y], data[[3, 1]]
    )
    with pytest.raises(
        ExecutionError, match=r"gather: index 4 of dimension 0 of x is outside 0\.\.3"
    ):
        evaluate(gather, {x: data, at: np.array([0, 4])})


def test_pieces_and_intermediates() -> None:
    x, t, y = Buffer("x", (3,), F), Buffer("t", (5,), F), Buffer("y", (5,), F)
    head = map_("head", t, lambda i: x[i], extents=(3,), index=lambda i: (i,))
    tail = map_("tail", t, lambda i: x[i] + 1.0, extents=(2,), index=lambda i: (i + 3,))
    double = map_("double", y, lambda i: t[i] * 2.0)
    data = small(3)
    expected = np.concatenate([data, data[:2] + 1]) * 2
    np.testing.assert_array_equal(
        evaluate([head, tail, double], {x: data})[y], expected
    )


def test_large_domains_are_evaluated_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interp, "_CHUNK", 7)
    x, y = Buffer("x", (5, 6), F), Buffer("y", (6, 5), F)
    data = small(5, 6)
    turned = map_("turned", y, lambda i, j: padded(x, (j - 1, i), 9.0))
    expected = np.vstack([np.full((1, 6), 9, np.float32), data[:4]]).T
    np.testing.assert_array_equal(evaluate(turned, {x: data})[y], expected)


def test_arguments_are_checked() -> None:
    x, y = Buffer("x", (3,), F), Buffer("y", (3,), F)
    copy = map_("copy", y, lambda i: x[i])
    with pytest.raises(InputError, match="copy: no array for x"):
        evaluate(copy, {})
    with pytest.raises(InputError, match="was given an array"):
        evaluate(copy, {x: np.zeros(4, np.float32)})
