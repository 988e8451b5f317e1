"""Pad in every mode, against NumPy's pad."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.one_operator import agree, model_of
from tilewright.frontends.onnx.load import load
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph.interp import evaluate


@settings(max_examples=12, deadline=None)
@given(
    mode=st.sampled_from(["constant", "reflect", "edge", "wrap"]),
    pads=st.lists(st.integers(0, 6), min_size=4, max_size=4),
    dtype=st.sampled_from(["float32", "int8", "bool", "float16"]),
)
def test_modes(mode, pads, dtype):
    x = np.arange(1, 13).reshape(3, 4).astype(dtype)
    value = np.array(1, dtype) if mode == "constant" else None
    agree("Pad", [x, np.array(pads), value], known=(1,), mode=mode)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_negative_pads_crop(mode):
    x = np.arange(20, dtype=np.float32).reshape(4, 5)
    padded = np.pad(x, ((0, 1), (2, 0)), mode)
    want = [padded[1:, :-1]]
    agree("Pad", [x, np.array([-1, 2, 1, -1])], known=(1,), mode=mode, expected=want)


@settings(max_examples=60, deadline=None)
@given(
    mode=st.sampled_from(["constant", "reflect", "edge", "wrap"]),
    pads=st.lists(st.integers(0, 9), min_size=2, max_size=2),
    crops=st.lists(st.integers(0, 4), min_size=4, max_size=4),
    extents=st.tuples(st.integers(1, 4), st.integers(5, 9)),
)
def test_the_reference_pads_and_crops(mode, pads, crops, extents):
    """It checks models (`tilewright verify`); ONNX's own refuses negative pads.

    The last axis is padded and cropped, from the second one or by as much again; the first is
    only padded.
    """
    x = np.arange(1.0, 1 + np.prod(extents), dtype=np.float32).reshape(extents)
    begin, end = pads
    low, high, first, second = crops
    want = np.pad(x, ((first, second), (begin, end)), mode)
    want = want[:, low : want.shape[1] - high]
    given = [first, begin - low, second, end - high]
    model = model_of("Pad", [x, np.array(given)], known=(1,), mode=mode)
    found = evaluate(load(model), {"x0": x}, fallback=OnnxFallback())["y0"]
    assert found.dtype == x.dtype
    np.testing.assert_array_equal(found, want)


def test_the_reference_pads_what_is_empty():
    x = np.ones((2, 0), np.float32)
    inputs = [x, np.array([1, 2]), np.array(5, np.float32), np.array([1])]
    model = model_of("Pad", inputs, known=(1, 3))
    found = evaluate(load(model), {"x0": x, "x2": inputs[2]})["y0"]
    np.testing.assert_array_equal(found, np.full((2, 3), 5, np.float32))


def test_the_reference_pads_by_attributes():
    """As before ONNX 11."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    model = model_of("Pad", [x], opset=10, pads=[0, -1, 1, 2], value=7.0)
    found = evaluate(load(model), {"x0": x}, fallback=OnnxFallback())["y0"]
    want = np.pad(x, ((0, 1), (0, 2)), constant_values=7)[:, 1:]
    np.testing.assert_array_equal(found, want)


def test_some_axes():
    x = np.ones((2, 3, 4), np.float32)
    inputs = [x, np.array([1, 2, 0, 1]), np.array(5, np.float32), np.array([-1, 0])]
    agree("Pad", inputs, known=(1, 3))
