"""Sums of many numbers, compiled: how far they are from float64."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.graph.one_operator import model_of
from tilewright.base.dtypes import float32
from tilewright.compute.build import reduce_
from tilewright.expr.nodes import Buffer
from tilewright.plan.nodes import FusionGroup
from tilewright.plan.passes.compensate import SHORT, compensate

EPS = float(np.finfo(np.float32).eps) / 2
N = 60_000
RNG = np.random.default_rng(0)
# Ten thousand and a bit: each addition rounds away what is below the last place of the sum.
LARGE = (RNG.standard_normal((2, N)) + 1e4).astype(np.float32)
SMALL = RNG.standard_normal((2, N)).astype(np.float32)


def ran(operator: str, x: np.ndarray, axes: list[int], **options):
    inputs = [x]
    if operator == "LayerNormalization":
        inputs.append(np.ones(x.shape[1], np.float32))
    how = {"axes": axes} if operator.startswith("Reduce") else {}
    model = model_of(operator, inputs, opset=17, known=[1], **how)
    return tw.compile(model, cache=False, **{"threads": 1, **options})(x)


def shares(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def normal(x):
    away = x - x.mean(1, keepdims=True)
    return away / np.sqrt((away**2).mean(1, keepdims=True) + 1e-5)


def end(x):
    return np.log(np.exp(x).sum(1, keepdims=True))


# The results in float64, and the units of half a last place that exact ones may be off.
ROWS = {
    "ReduceMean": (LARGE, lambda x: x.mean(1, keepdims=True), 2),
    "ReduceL2": (LARGE, lambda x: np.sqrt((x**2).sum(1, keepdims=True)), 2),
    "ReduceSumSquare": (LARGE, lambda x: (x**2).sum(1, keepdims=True), 2),
    "ReduceLogSumExp": (SMALL, end, 2),
    "Softmax": (SMALL, shares, 20),  # of which exp has most
    "LayerNormalization": (SMALL + 10, normal, 16),  # the last place of the mean
}


def error(found, want) -> float:
    """In units of half a last place, of numbers below 1 those of 1."""
    size = np.maximum(np.abs(want), 1 if want.min() < 0 else 0)
    return float((np.abs(found - want) / size).max() / EPS)


@pytest.mark.parametrize("operator", ROWS)
def test_long_rows_are_near_float64(operator) -> None:
    """By default within a few units times the root of the length, and exact ones nearer."""
    x, of, few = ROWS[operator]
    x = x.astype(np.float32)
    want = of(x.astype(np.float64))
    assert error(ran(operator, x, [1]), want) < 4 * N**0.5
    assert error(ran(operator, x, [1], math="exact"), want) < few


def square_error(found, want, terms: int) -> float:
    """Its root of the mean, in halves of a unit in the last place, by the root of the terms."""
    return float(np.sqrt(((found - want) ** 2).mean()) / EPS / terms**0.5)


@pytest.mark.parametrize("rows", [1, 48])
def test_errors_of_long_products_do_not_grow_with_their_length(rows) -> None:
    """Three times as large if one register adds all terms."""
    terms = 8192
    a = RNG.standard_normal((rows, terms)).astype(np.float32)
    b = RNG.standard_normal((terms, 160)).astype(np.float32)
    model = model_of("MatMul", [a, b], opset=17, known=[1])
    found = tw.compile(model, cache=False, threads=1)(a)
    assert square_error(found, a.astype(float) @ b, terms) < 10


def test_errors_of_a_deep_convolution_do_not_grow_with_its_depth() -> None:
    """Of stride 2, which no transform does with fewer products."""
    x = RNG.standard_normal((1, 512, 8, 8)).astype(np.float32)
    w = RNG.standard_normal((32, 512, 5, 5)).astype(np.float32)
    model = model_of("Conv", [x, w], opset=17, known=[1], strides=[2, 2])
    found = tw.compile(model, cache=False, threads=1)(x)
    places = np.lib.stride_tricks.sliding_window_view(x, (5, 5), (2, 3))[
        ..., ::2, ::2, :, :
    ]
    want = np.einsum("nchwij,kcij->nkhw", places.astype(float), w.astype(float))
    assert square_error(found, want, 512 * 25) < 10


@pytest.mark.parametrize("threads", [1, 2])
def test_errors_of_sums_down_columns_do_not_grow_with_their_length(threads) -> None:
    x = RNG.random((N, 70)).astype(np.float32)
    found = ran("ReduceMean", x, [0], threads=threads)
    assert error(found, x.mean(0, dtype=float, keepdims=True)) < 40


@pytest.mark.parametrize("axis", [0, 1])
def test_an_exact_sum_is_no_farther_than_in_pairs(axis) -> None:
    """Of rows and of columns; NumPy adds rows in pairs."""
    want = LARGE.astype(np.float64).mean(1)
    pairs = error(LARGE.mean(1), want)
    x = LARGE if axis else np.ascontiguousarray(LARGE.T)
    found = ran("ReduceMean", x, [axis], math="exact")
    assert error(found.ravel(), want) <= max(pairs, 1)


@pytest.mark.parametrize("axis", [0, 1])
def test_exact_sums_have_the_same_bits_everywhere(axis) -> None:
    x = LARGE.reshape(-1, 20)
    first = ran("ReduceMean", x, [axis], math="exact")
    ways = {"threads": 2}, {"mcpu": "x86-64-v2"}, {"fusion": False}
    for options in ways:
        found = ran("ReduceMean", x, [axis], math="exact", **options)
        assert found.tobytes() == first.tobytes()


def test_what_is_compensated() -> None:
    """Long sums, but not short ones, nor sums of products of two tensors."""
    a, b = (Buffer(name, (4, 9), float32) for name in "ab")
    y = Buffer("y", (4,), float32)

    def kept(terms: int, value) -> bool:
        c = reduce_("sum", y, (terms,), "add", value)
        group = FusionGroup("g", (c,), ())
        return compensate([group]) == [group]

    assert kept(SHORT, lambda i, j: a[i, j])
    assert not kept(SHORT + 1, lambda i, j: a[i, j])
    assert kept(9, lambda i, j: a[i, j] * b[i, j])
    assert not kept(9, lambda i, j: a[i, j] * a[i, j])
    assert not kept(9, lambda i, j: a[i, j] * 2.0)
