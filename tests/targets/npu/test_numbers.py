"""Formats round as ml_dtypes and NumPy do, blocks within their bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tilewright.base.dtypes import float8_e4m3fn
from tilewright.targets.npu import BlockFloat, Float8, Float16, Float32, NumberFormat

FLOATS = st.floats(-600, 600, width=32)


@given(arrays(np.float32, 20, elements=FLOATS))
def test_float8_is_e4m3fn_and_saturates(x: np.ndarray) -> None:
    expected = np.clip(x, -448, 448).astype(float8_e4m3fn.numpy).astype(np.float32)
    np.testing.assert_array_equal(Float8.round(x), expected)


@given(arrays(np.float32, 20, elements=st.floats(width=32, allow_nan=False)))
def test_float16_is_ieee(x: np.ndarray) -> None:
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(Float16.round(x), expected)


@pytest.mark.parametrize("number", [Float8, Float16, Float32], ids=lambda n: n.name)
@given(x=st.floats(-440, 440, width=32))
def test_the_error_of_rounding_is_bounded(number: NumberFormat, x: float) -> None:
    rounded = float(number.round(np.asarray([x], np.float32))[0])
    assert abs(rounded - x) <= number.unit * abs(x) + number.tiny
    assert number.round(np.asarray([rounded], np.float32))[0] == rounded


@given(arrays(np.float32, (2, 21), elements=FLOATS))
def test_blocks_share_an_exponent(x: np.ndarray) -> None:
    block = BlockFloat(16, mantissa=5)
    rounded = block.round(x)
    assert (np.abs(rounded - x) <= block.errors(np.abs(x).astype(np.float64))).all()
    wide = rounded.astype(np.float64)
    for part in (wide[0, :16], wide[1, 16:]):
        largest = np.abs(part).max()
        if largest:
            step = 2.0 ** (np.floor(np.log2(largest)) + 1 - 6)
            assert not np.mod(part, step).any()
