"""Reading tensors in host memory by DLPack, of the types that NumPy rejects, too."""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilewright.base.errors import InputError
from tilewright.runtime.capsule import OTHER_DTYPES, view

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


def device_of(value: Any) -> tuple[int, str]:
    """The DLPack device type and a name for it. Raises InputError if the value will not tell, or
    has no data."""
    require_data(value)
    try:
        kind, number = value.__dlpack_device__()
    except Exception as error:
        raise InputError(f"its device is unknown: {error}") from error
    return int(kind), named(int(kind), int(number))


def require_data(value: Any) -> None:
    """Raise InputError for a tensor on PyTorch's device `meta`: it only has a shape and a type."""
    if getattr(value, "is_meta", False):
        raise InputError(
            "it is on PyTorch's device 'meta', where tensors have no data",
            hint="pass one on the CPU; a module's come by to_empty and load_state_dict",
        )


def named(kind: int, number: int) -> str:
    """A DLPack device for messages."""
    return f"{DEVICES.get(kind, f'device type {kind}')}:{number}"


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
    tensor = view(capsule)
    dtype = OTHER_DTYPES.get(tensor.code)
    if dtype is None or tensor.lanes != 1:
        code, bits = tensor.code
        raise InputError(
            f"its DLPack type (code {code}, {bits} bits, {tensor.lanes} lanes) "
            "has no NumPy equal"
        )
    shape, numpy_dtype = tensor.shape, dtype.numpy
    if 0 in shape:
        return np.empty(shape, numpy_dtype)
    strides = None
    span = numpy_dtype.itemsize
    if tensor.strides:
        strides = tuple(s * numpy_dtype.itemsize for s in tensor.strides)
        if any(s < 0 for s in strides):
            raise InputError(
                "it has a negative stride", hint="Make it contiguous first"
            )
        span += sum((n - 1) * s for n, s in zip(shape, strides))
    else:
        span *= int(np.prod(shape, dtype=np.int64))
    memory: Any = (ctypes.c_char * span).from_address(tensor.address)
    # The unused capsule owns the tensor and frees it when destroyed; so it lives as long as the
    # view.
    memory.capsule = capsule
    return np.ndarray(shape, numpy_dtype, memory, 0, strides)
