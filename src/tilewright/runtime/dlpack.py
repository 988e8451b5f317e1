"""Reading DLPack capsules of element types that NumPy rejects: bfloat16 and the 8-bit floats.

The structure is DLPack's unversioned one (dlpack.h, struct DLManagedTensor).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.base.errors import InputError

CPU: Final = 1
CUDA_HOST: Final = 3
DEVICES: Final = {
    1: "cpu",
    2: "cuda",
    3: "cuda host",
    4: "opencl",
    7: "vulkan",
    8: "metal",
}

# (type code, bits) -> dtype, for the types that NumPy's own reader does not take.
_DTYPES: Final[Mapping[tuple[int, int], DType]] = {
    (4, 16): dtypes.bfloat16,
    (10, 8): dtypes.float8_e4m3fn,
    (11, 8): dtypes.float8_e4m3fnuz,
    (12, 8): dtypes.float8_e5m2,
    (13, 8): dtypes.float8_e5m2fnuz,
    (14, 8): dtypes.float8_e8m0fnu,
}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


def device_of(value: Any) -> tuple[int, str]:
    """The DLPack device type and a name for it. Raises InputError if the value will not tell."""
    try:
        kind, number = value.__dlpack_device__()
    except Exception as error:
        raise InputError(f"its device is unknown: {error}") from error
    return int(
        kind
    ), f"{DEVICES.get(int(kind), f'device type {int(kind)}')}:{int(number)}"


def read(value: Any) -> NDArray[Any]:
    """A view of any object in host memory that has `__dlpack__`.

    Raises InputError if the producer refuses, or if NumPy lacks the type.
    """
    kind, name = device_of(value)
    if kind not in (CPU, CUDA_HOST):
        raise InputError(f"it is on {name}", hint="Move it to the CPU first")
    # PyTorch exports the memory of a negated view, such as `z.conj().imag`, with the other sign.
    if hasattr(value, "is_neg") and value.is_neg():
        value = value.resolve_neg()
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError):
        pass  # not a type that NumPy knows
    try:
        capsule = value.__dlpack__()
    except Exception as error:
        raise InputError(f"it cannot be exported through DLPack: {error}") from error
    return _view(capsule)


def _view(capsule: Any) -> NDArray[Any]:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype = ctypes.c_void_p
    get.argtypes = [ctypes.py_object, ctypes.c_char_p]
    try:
        pointer = get(capsule, b"dltensor")
    except ValueError as error:
        raise InputError(f"its DLPack capsule is of another kind: {error}") from error
    tensor = _Tensor.from_address(pointer)
    dtype = _DTYPES.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        raise InputError(
            f"its DLPack type (code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes) "
            "has no NumPy equal"
        )
    shape = tuple(tensor.shape[n] for n in range(tensor.ndim))
    numpy_dtype = dtype.numpy
    if 0 in shape:
        return np.empty(shape, numpy_dtype)
    strides = None
    span = numpy_dtype.itemsize
    if tensor.strides:
        strides = tuple(
            tensor.strides[n] * numpy_dtype.itemsize for n in range(tensor.ndim)
        )
        if any(s < 0 for s in strides):
            raise InputError(
                "it has a negative stride", hint="Make it contiguous first"
            )
        span += sum((n - 1) * s for n, s in zip(shape, strides))
    else:
        span *= int(np.prod(shape, dtype=np.int64))
    memory: Any = (ctypes.c_char * span).from_address(tensor.data + tensor.byte_offset)
    # The unused capsule owns the tensor and frees it when destroyed; so it lives as long as the
    # view.
    memory.capsule = capsule
    return np.ndarray(shape, numpy_dtype, memory, 0, strides)
