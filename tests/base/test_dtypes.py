"""DTypes: one object each, and the same facts as NumPy and ml_dtypes."""

import copy
import pickle
import subprocess
import sys

import ml_dtypes
import numpy as np
import onnx
import pytest

from tilewright.base import dtypes
from tilewright.base.dtypes import ALL, dtype_of
from tilewright.base.errors import InputError

every = pytest.mark.parametrize("dtype", ALL, ids=repr)


@every
def test_there_is_one_object_per_name(dtype):
    assert dtype_of(dtype.name) is dtype
    assert dtype_of(dtype.numpy) is dtype
    assert dtype_of(dtype) is dtype
    assert copy.copy(dtype) is dtype
    assert copy.deepcopy([dtype])[0] is dtype
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert repr(dtype) == dtype.name


@every
def test_the_facts_are_numpys(dtype):
    assert dtype.itemsize == dtype.numpy.itemsize
    if dtype.is_int:
        info = ml_dtypes.iinfo(dtype.numpy)
        assert (dtype.min, dtype.max, dtype.bits) == (info.min, info.max, info.bits)
        assert dtype.is_signed == (info.min < 0)
    if dtype.is_float:
        info = ml_dtypes.finfo(dtype.numpy)
        assert (dtype.min, dtype.max, dtype.bits) == (
            float(info.min),
            float(info.max),
            info.bits,
        )
        assert dtype.is_signed == (float(info.min) < 0)


@every
def test_the_predicates_cover_every_kind_once(dtype):
    kinds = [
        dtype.is_float,
        dtype.is_int,
        dtype.is_bool,
        dtype.is_complex,
        dtype.is_string,
    ]
    assert kinds.count(True) == 1
    assert dtype.is_sub_byte == any(
        width in dtype.name for width in ("t2", "t4_", "t6_", "int4")
    )


def test_every_dtype_of_onnx_is_there():
    for number in onnx.TensorProto.DataType.values():
        if number != onnx.TensorProto.UNDEFINED:
            dtype_of(onnx.helper.tensor_dtype_to_np_dtype(number))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.float32, "float32"),
        (float, "float64"),
        (bool, "bool"),
        ("<f4", "float32"),
        (">i2", "int16"),
        (ml_dtypes.bfloat16, "bfloat16"),
        (np.zeros(1, "U7").dtype, "string"),
        (object, "string"),
        (np.dtypes.StringDType(), "string")
        if hasattr(np.dtypes, "StringDType")
        else ("O", "string"),
    ],
)
def test_dtype_of_takes_what_numpy_takes(given, expected):
    assert dtype_of(given).name == expected


@pytest.mark.parametrize(
    "given", [None, "float33", "M8[s]", "V8", "f4,f4", 3, [1], object()]
)
def test_anything_else_is_refused_by_name(given):
    with pytest.raises(
        InputError, match=r"is not a known dtype\. Known dtypes: float64"
    ):
        dtype_of(given)


@pytest.mark.parametrize("dtype", [dtypes.complex64, dtypes.string], ids=repr)
def test_no_limits_without_an_order(dtype):
    with pytest.raises(InputError, match="no least or greatest"):
        _ = dtype.max


def test_dtypes_cannot_be_changed():
    with pytest.raises(AttributeError):
        dtypes.float32.bits = 8


def test_importing_does_not_load_ml_dtypes():
    code = (
        "import sys; from tilewright.base.dtypes import float32; float32.max;"
        "assert 'ml_dtypes' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
