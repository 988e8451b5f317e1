"""Converting arguments to C-contiguous arrays of exactly the expected dtype and shape.

Nothing is converted silently: another dtype or shape is an InputError. Only Python's own numbers
and lists, which have no dtype, take the expected one, and only if no value changes: integers
exactly, floats to the nearest float.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dtypes import DType, dtype_of
from tilewright.base.errors import InputError, placed
from tilewright.runtime import dlpack
from tilewright.runtime.model import OBJECT, Tensor

_PYTHON: Final = (bool, int, float, complex, str, bytes, list, tuple)
# What to do if a call gives too many, too few or other inputs.
PASS_INPUTS: Final = "pass each input once, in order or by name"


def convert(value: Any, tensor: Tensor) -> Any:
    """`value` as the input `tensor`: a C-contiguous, aligned array; any object for dtype "object".

    The array shares memory with the value where it can. Raises InputError.
    """
    if tensor.dtype == OBJECT:
        return value
    if type(value) is np.ndarray and value.shape == tensor.shape:
        plain = value.flags.c_contiguous and value.flags.aligned
        if plain and value.dtype == dtype_of(tensor.dtype).numpy:
            return value
    with placed(f"input {tensor.name!r}"):
        return _convert(value, tensor)


def is_torch(value: Any) -> bool:
    """Whether the value is a PyTorch tensor, without importing PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _convert(value: Any, tensor: Tensor) -> NDArray[Any]:
    expected = dtype_of(tensor.dtype)
    if isinstance(value, _PYTHON):
        array = _from_python(value, expected, tensor)
    elif expected.is_string:
        array = _strings(np.asarray(value), tensor)
    else:
        array = _as_array(value)
        _require_dtype(array, expected, tensor, is_torch(value))
    if not _fits(array.shape, tensor.shape):
        raise InputError(
            f"expected {tensor.layout}, got shape {_shown(array.shape)}",
            code="TW-SHAPE",
            hint="reshape it, or compile a model with names for dimensions that vary",
        )
    # `require` also copies unaligned arrays, and preserves zero-dimensional ones.
    return np.require(array, expected.numpy, ["C", "A"])


def _as_array(value: Any) -> NDArray[Any]:
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, np.generic):
        return np.asarray(value)
    if is_torch(value):
        value = value.detach()  # a tensor that requires gradients refuses DLPack
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        return dlpack.read(value)
    if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        return np.asarray(value)
    try:
        return np.asarray(memoryview(value))
    except TypeError:
        raise InputError(
            f"expected an array, got {type(value).__name__}",
            hint="Pass a NumPy array, a tensor with __dlpack__, a number or a list",
        ) from None


def _require_dtype(
    array: NDArray[Any], expected: DType, tensor: Tensor, of_torch: bool = False
) -> None:
    try:
        found = dtype_of(array.dtype)
    except InputError:
        found = None
    if found is not expected:
        got = found.name if found else str(array.dtype)
        how = f".astype({expected.name!r}) of NumPy"
        how = f".to(torch.{expected.name})" if of_torch else how
        raise InputError(
            f"expected {tensor.layout}, got {got}{_shown(array.shape)}",
            code="TW-DTYPE",
            hint=f"Convert it yourself, for instance with {how}",
        )


def _from_python(value: Any, expected: DType, tensor: Tensor) -> NDArray[Any]:
    if expected.is_string:
        return _strings(np.asarray(value, object), tensor)
    try:
        array = np.asarray(value)
        if array.dtype == object and _all_integers(array):
            if not expected.is_int:
                raise OverflowError
            return array.astype(expected.numpy)
    except (ValueError, TypeError, OverflowError):
        raise InputError(
            f"expected {tensor.layout}, got a {type(value).__name__}, "
            "which cannot be converted to an array"
        ) from None
    if array.size == 0:
        return array.astype(expected.numpy)
    if (
        array.dtype.kind == "V" or array.dtype == expected.numpy
    ):  # a list of NumPy values
        _require_dtype(array, expected, tensor)
        return array
    with np.errstate(all="ignore"):
        return _exactly(array, expected, tensor)


def _exactly(array: NDArray[Any], expected: DType, tensor: Tensor) -> NDArray[Any]:
    """Python numbers in the expected dtype, if that changes no value."""
    kind = array.dtype.kind
    if kind in "biu" and expected.is_int:
        fits = int(array.min()) >= expected.min and int(array.max()) <= expected.max
        if fits:
            return array.astype(expected.numpy)
    elif kind == "b" and expected.is_bool:
        return array
    elif kind in "biuf" and (expected.is_float or expected.is_complex):
        made = array.astype(expected.numpy)
        back = made.astype(array.dtype)
        overflow = np.isfinite(array) & ~np.isfinite(made.astype(np.complex128))
        if not overflow.any() and (kind == "f" or (back == array).all()):
            return made
    elif kind == "c" and expected.is_complex:
        return array.astype(expected.numpy)
    raise InputError(
        f"expected {tensor.layout}, got Python values that {expected.name} cannot hold exactly",
        code="TW-DTYPE",
        hint="Pass an array of the expected dtype",
    )


def _all_integers(array: NDArray[Any]) -> bool:
    """Integers too wide for int64 make an array of objects."""
    if all(isinstance(v, int) for v in array.flat):
        return True
    raise TypeError


def _strings(array: NDArray[Any], tensor: Tensor) -> NDArray[Any]:
    array = array.astype(object) if array.dtype.kind in "OUST" else array
    if array.dtype != object or not all(
        isinstance(v, (str, bytes)) for v in array.flat
    ):
        raise InputError(f"expected {tensor.layout}, got other values", code="TW-DTYPE")
    return array


def _fits(shape: tuple[int, ...], expected: tuple[int | None, ...] | None) -> bool:
    if expected is None or shape == expected:
        return True
    return len(shape) == len(expected) and all(
        e is None or n == e for n, e in zip(shape, expected)
    )


def _shown(shape: tuple[int, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
