"""Cast between every pair of dtypes that memory can hold, against onnx.reference."""

import ml_dtypes
import numpy as np
import pytest
from onnx.helper import np_dtype_to_tensor_dtype

from tests.graph.one_operator import agree

PLAIN = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
]
NARROW = [
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float4_e2m1fn",
    "int4",
    "uint4",
    "int2",
    "uint2",
]
X = np.array([0, 1, 2, 3, 0.5, 1.5, 0.1, 1.75, 3.25, 0.7], np.float32)


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, None) or name)


@pytest.mark.covering(1)
@pytest.mark.parametrize("target", PLAIN)
@pytest.mark.parametrize("source", PLAIN)
def test_plain(source, target):
    to = np_dtype_to_tensor_dtype(dtype_of(target))
    agree("Cast", [X.astype(source)], to=to, opset=23)


@pytest.mark.covering(1)
@pytest.mark.parametrize("narrow", NARROW)
@pytest.mark.parametrize("wide", ["float32", "float16"])
def test_narrow(narrow, wide):
    for source, target in ((narrow, wide), (wide, narrow)):
        x = X.astype(dtype_of(source))
        agree("Cast", [x], to=np_dtype_to_tensor_dtype(dtype_of(target)), opset=25)


@pytest.mark.parametrize("target", [n for n in NARROW if n.startswith("float8")])
@pytest.mark.parametrize("saturate", [0, 1])
def test_saturation(target, saturate):
    x = np.array([1e6, -1e6, np.inf, -np.inf, np.nan, 447, 57344], np.float32)
    to = np_dtype_to_tensor_dtype(dtype_of(target))
    agree("Cast", [x], to=to, opset=23, saturate=saturate)


@pytest.mark.parametrize("mode", ["nearest", "up", "down"])
@pytest.mark.parametrize("saturate", [0, 1])
def test_exponents(mode, saturate):
    x = np.array(
        [1, 1.4, 1.5, 1.6, 3e38, 1e-39, 0, np.inf, np.nan, 2.9e38, 0.1], np.float32
    )
    to = np_dtype_to_tensor_dtype(np.dtype(ml_dtypes.float8_e8m0fnu))
    agree("Cast", [x], to=to, opset=25, saturate=saturate, round_mode=mode)
    back = x.astype(ml_dtypes.float8_e8m0fnu)
    agree("Cast", [back], to=1, opset=25)
