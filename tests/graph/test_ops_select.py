"""Scans, TopK, and the operators that read or write at computed positions, against ONNX."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tests.graph.one_operator import agree, model_of, run
from tilewright.base.errors import ExecutionError

quick = settings(max_examples=4, deadline=None)
shapes = st.lists(st.integers(1, 5), min_size=1, max_size=3)


def real(shape, seed=0):
    return np.random.default_rng(seed).standard_normal(tuple(shape)).astype(np.float32)


@quick
@given(shapes, st.booleans(), st.booleans(), st.integers(0, 2))
def test_running_sums(shape, exclusive, reverse, axis):
    x, at = real(shape), np.array(axis % len(shape), np.int64)
    agree("CumSum", [x, at], known=[1], exclusive=int(exclusive), reverse=int(reverse))


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(
    "shape, axis, k", [((40,), 0, 7), ((3, 17, 4), 1, 17), ((6, 5), -1, 1)]
)
def test_top_k(shape, axis, k, largest):
    x = np.random.default_rng(k).integers(-9, 9, shape).astype(np.float32)
    k = np.array([k], np.int64)
    stable = np.argsort(-x if largest else x, axis, kind="stable")
    places = np.take(stable, range(int(k[0])), axis)
    expected = [np.take_along_axis(x, places, axis), places]
    agree("TopK", [x, k], outputs=2, expected=expected, axis=axis, largest=largest)


@pytest.mark.parametrize("kind", ["float32", "int64", "uint8", "bool"])
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(("extent", "k"), [(90, 33), (64, 64), (1700, 40), (3, 2)])
def test_many_of_a_row(extent, k, largest, kind):
    """By selection: equal elements keep their order, and NaN is above all numbers."""
    rng = np.random.default_rng(extent)
    x = rng.integers(0, 12, (3, extent)).astype(kind)
    keys = x.astype(np.float64)
    if kind == "float32":
        x[rng.random(x.shape) < 0.05] = np.nan
        x[rng.random(x.shape) < 0.05] = -np.inf
        x[:, ::7] = np.inf
        keys = np.where(np.isnan(x), 1e6, np.nan_to_num(x, posinf=1e5, neginf=-1e5))
    stable = np.argsort(-keys if largest else keys, -1, kind="stable")[:, :k]
    expected = [np.take_along_axis(x, stable, -1), stable]
    made = model_of("TopK", [x, np.array([k])], known=[1], outputs=2, largest=largest)
    for found, want in zip(run(made, [x]), expected, strict=True):
        np.testing.assert_array_equal(found, want)


def test_nan_is_the_largest():
    x = np.array([1, np.nan, -3, 5, np.nan], np.float32)
    k = np.array([3], np.int64)
    best = [np.array([np.nan, np.nan, 5], np.float32), np.array([1, 4, 3])]
    agree("TopK", [x, k], known=[1], outputs=2, expected=best)
    least = [np.array([-3, 1, 5], np.float32), np.array([2, 0, 3])]
    agree("TopK", [x, k], known=[1], outputs=2, expected=least, largest=0)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter_elements(reduction):
    rng = np.random.default_rng(1)
    data, updates = real((5, 6)), real((3, 6))
    columns = np.array([rng.permutation(5)[:3] for _ in range(6)]).T - 5
    agree("ScatterElements", [data, columns, updates], opset=18, reduction=reduction)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter_nd(reduction):
    data, updates = real((4, 5, 20)), real((2, 20))
    places = np.array([[1, 2], [-1, 0]], np.int64)
    agree("ScatterND", [data, places, updates], opset=18, reduction=reduction)


@pytest.mark.parametrize("batch, shape", [(0, (2, 2)), (1, (3, 4, 1)), (1, (3, 2))])
def test_gather_nd(batch, shape):
    places = np.random.default_rng(2).integers(-2, 2, shape)
    agree("GatherND", [real((3, 4, 5)), places], batch_dims=batch)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_one_hot(axis):
    places, values = (
        np.array([[0, -1, 7], [2, 3, -9]], np.int64),
        np.array([2, 5], np.float32),
    )
    expected = np.full((2, 3, 4), 2, np.float32)
    for n, p in np.ndenumerate(places):
        if -4 <= p < 4:
            expected[(*n, p)] = 5
    expected = np.moveaxis(expected, -1, axis)
    agree("OneHot", [places, np.array(4), values], expected=[expected], axis=axis)


@pytest.mark.parametrize("opset, axis", [(13, 1), (13, -1), (11, 1)])
def test_hardmax(opset, axis):
    x = np.random.default_rng(3).integers(0, 3, (2, 3, 4)).astype(np.float32)
    flat = x.reshape(2, 12) if opset < 13 else np.moveaxis(x, axis, -1)
    marks = np.eye(flat.shape[-1], dtype=np.float32)[flat.argmax(-1)]
    expected = marks.reshape(x.shape) if opset < 13 else np.moveaxis(marks, -1, axis)
    agree("Hardmax", [x], opset=opset, axis=axis, expected=[expected])


def test_reversed_sequences():
    lengths = np.array([4, 1, 3], np.int64)
    agree("ReverseSequence", [real((4, 3, 2)), lengths], time_axis=0, batch_axis=1)
    agree("ReverseSequence", [real((3, 4)), lengths], time_axis=1, batch_axis=0)


@pytest.mark.parametrize(
    "op, inputs",
    [
        ("ScatterElements", [real((3,)), np.array([3]), real((1,))]),
        ("ScatterND", [real((3, 2)), np.array([[-4]]), real((1, 2))]),
        ("GatherND", [real((3, 2)), np.array([[0, 2]])]),
        ("ReverseSequence", [real((2, 1)), np.array([3])]),
    ],
)
def test_an_index_out_of_range_is_refused(op, inputs):
    exe = tw.compile(model_of(op, inputs, opset=18), threads=1, cache=False)
    with pytest.raises(ExecutionError):
        exe(*inputs)
