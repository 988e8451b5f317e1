"""Inputs: another dtype is never converted; Python numbers and lists take the dtype exactly."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.base import dtypes
from tilewright.base.errors import InputError
from tilewright.runtime import outputs
from tilewright.runtime.inputs import convert
from tilewright.runtime.model import OBJECT, Tensor

NUMERIC = [d for d in dtypes.ALL if not d.is_string]


def tensor(dtype, *shape):
    return Tensor("x", dtype, shape)


@pytest.mark.parametrize("dtype", NUMERIC, ids=repr)
def test_an_array_of_the_expected_dtype_is_not_copied(dtype):
    x = np.zeros((2, 3), dtype.numpy)
    assert convert(x, tensor(dtype.name, 2, 3)) is x
    made = convert(x.T, tensor(dtype.name, 3, 2))
    assert made.flags.c_contiguous and made.dtype == dtype.numpy


@pytest.mark.parametrize("dtype", NUMERIC, ids=repr)
def test_an_array_of_another_dtype_is_refused(dtype):
    other = dtypes.float32 if dtype is not dtypes.float32 else dtypes.float64
    with pytest.raises(
        InputError, match=rf"expected {dtype.name}\[2\], got {other.name}\[2\]"
    ):
        convert(np.zeros(2, other.numpy), tensor(dtype.name, 2))


@pytest.mark.parametrize(
    ("value", "dtype", "shape"),
    [
        (1, "float32", ()),
        (True, "bool", ()),
        (True, "int8", ()),
        (0.1, "float32", ()),
        (2**63, "uint64", ()),
        ([1, -2], "int8", (2,)),
        ([[1], [2]], "float16", (2, 1)),
        ([], "float32", (0,)),
        ([[], []], "int64", (2, 0)),
        (float("inf"), "float16", ()),
        (1 + 2j, "complex64", ()),
        ([np.float32(1), np.float32(2)], "float32", (2,)),
    ],
)
def test_python_values_take_the_expected_dtype(value, dtype, shape):
    made = convert(value, tensor(dtype, *shape))
    assert made.dtype == dtypes.dtype_of(dtype).numpy and made.shape == shape
    np.testing.assert_array_equal(made, np.array(value, made.dtype).reshape(shape))


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (300, "int8"),
        (-1, "uint8"),
        (1.5, "int32"),
        (1.0, "int32"),
        (1, "bool"),
        (2**24 + 1, "float32"),
        (2**70, "float64"),
        (2**64, "uint64"),
        (1e300, "float32"),
        (1j, "float32"),
        ("1", "float32"),
        ([1, [2]], "float32"),
        (1, "string"),
    ],
)
def test_python_values_that_would_change_are_refused(value, dtype):
    shape = np.shape(value) if not isinstance(value, list) else (2,)
    with pytest.raises(InputError, match="input 'x': expected"):
        convert(value, tensor(dtype, *shape))


@given(
    st.floats(width=64), st.sampled_from(["float64", "float32", "float16", "bfloat16"])
)
def test_floats_are_rounded_to_the_nearest_or_refused(value, dtype):
    numpy_dtype = dtypes.dtype_of(dtype).numpy
    with np.errstate(over="ignore"):
        nearest = np.array(value).astype(numpy_dtype)
    try:
        made = convert(value, tensor(dtype))
    except InputError:
        assert math.isfinite(value) and not np.isfinite(nearest.astype(float))
        return
    assert made.tobytes() == nearest.tobytes() or math.isnan(value)


@given(
    st.integers(-(2**65), 2**65), st.sampled_from([d.name for d in NUMERIC if d.is_int])
)
def test_integers_are_exact_or_refused(value, dtype):
    limits = dtypes.dtype_of(dtype)
    try:
        assert int(convert(value, tensor(dtype))) == value
    except InputError:
        assert not limits.min <= value <= limits.max


def test_strings_and_objects():
    assert convert(["a", "b"], tensor("string", 2)).tolist() == ["a", "b"]
    assert convert(np.array(["a"]), tensor("string", 1)).dtype == object
    with pytest.raises(InputError, match="expected string"):
        convert(np.zeros(2), tensor("string", 2))
    thing = object()
    assert convert(thing, Tensor("x", OBJECT, None)) is thing


def test_unknown_extents():
    some = Tensor("x", "float32", (None, 3))
    assert convert(np.zeros((5, 3), np.float32), some).shape == (5, 3)
    with pytest.raises(InputError, match=r"expected float32\[\?, 3\], got shape \[3\]"):
        convert(np.zeros(3, np.float32), some)
    assert convert(np.float32(1), Tensor("x", "float32", None)).shape == ()


class OnlyArray:
    def __array__(self, dtype=None, copy=None):
        return np.arange(3, dtype=np.float32)


def test_other_array_protocols():
    want = np.arange(3, dtype=np.float32)
    for value in (OnlyArray(), memoryview(want), want.data):
        np.testing.assert_array_equal(convert(value, tensor("float32", 3)), want)
    data = convert(bytearray(b"abc"), tensor("uint8", 3))
    assert data.tolist() == [97, 98, 99]


# ----------------------------------------------------------------------------------- DLPack


TORCH_TYPES = [
    "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 bool complex64".split(),
    "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz".split(),
]


@pytest.mark.parametrize("name", [n for row in TORCH_TYPES for n in row])
def test_torch_tensors_without_a_copy(name):
    torch = pytest.importorskip("torch")
    values = [[0, 1, 1], [1, 0, 1]]
    x = torch.tensor(values, dtype=torch.float32).to(getattr(torch, name))
    made = convert(x, tensor(name, 2, 3))
    assert made.ctypes.data == x.data_ptr()
    np.testing.assert_array_equal(made.astype(np.complex64), values)
    across = convert(x.T, tensor(name, 3, 2))
    np.testing.assert_array_equal(across.astype(np.complex64), np.transpose(values))
    assert convert(x[:0], tensor(name, 0, 3)).shape == (0, 3)
    back = outputs.to_torch(made)
    assert back.dtype == x.dtype and back.data_ptr() == x.data_ptr()


def test_a_negated_view_has_its_sign():
    """NumPy's own import has the sign of the memory."""
    torch = pytest.importorskip("torch")
    x = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert x.is_neg()
    np.testing.assert_array_equal(convert(x, tensor("float32", 2)), [-2, 4])


def test_memory_of_a_capsule_lives_as_long_as_its_array():
    torch = pytest.importorskip("torch")
    made = convert(
        torch.full((1000,), 3, dtype=torch.bfloat16), tensor("bfloat16", 1000)
    )
    others = [torch.full((1000,), 7, dtype=torch.bfloat16) for _ in range(100)]
    assert (made == ml_dtypes.bfloat16(3)).all() and len(others) == 100


class Elsewhere:
    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, **_):
        raise AssertionError("nobody may ask")


class Broken(Elsewhere):
    def __dlpack_device__(self):
        return 1, 0


def test_what_lies_elsewhere_is_refused_by_name():
    with pytest.raises(
        InputError, match=r"input 'x': it is on cuda:0\. Move it to the CPU"
    ):
        convert(Elsewhere(), tensor("float32", 2))


def test_torch_dtype_and_gradient():
    torch = pytest.importorskip("torch")
    with pytest.raises(InputError, match=r"expected float32\[2\], got float64\[2\]"):
        convert(torch.zeros(2, dtype=torch.float64), tensor("float32", 2))
    assert convert(torch.zeros(2, requires_grad=True), tensor("float32", 2)).shape == (
        2,
    )


def test_a_torch_tensor_of_another_dtype_is_converted_by_torch():
    torch = pytest.importorskip("torch")
    for value, hint in (
        (torch.zeros(2, dtype=torch.float64), r"with \.to\(torch\.float32\)$"),
        (np.zeros(2), r"with \.astype\('float32'\) of NumPy$"),
    ):
        with pytest.raises(InputError, match=hint):
            convert(value, tensor("float32", 2))
