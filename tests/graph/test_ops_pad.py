"""Pad in every mode, against NumPy's pad."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.graph.one_operator import agree


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


def test_some_axes():
    x = np.ones((2, 3, 4), np.float32)
    inputs = [x, np.array([1, 2, 0, 1]), np.array(5, np.float32), np.array([-1, 0])]
    agree("Pad", inputs, known=(1, 3))
