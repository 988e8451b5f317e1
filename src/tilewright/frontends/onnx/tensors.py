"""TensorProtos to NumPy arrays; every size is checked before memory is allocated."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from tilewright.base import limits
from tilewright.base.dtypes import DType
from tilewright.base.errors import MemoryLimitError, ModelError
from tilewright.frontends.onnx import external
from tilewright.frontends.onnx.external import ExternalData
from tilewright.frontends.onnx.protos import dtype_from_onnx

Array = np.ndarray[Any, Any]


def to_array(
    tensor: Any,
    rules: ExternalData,
    limit: int,
    where: str,
    raw: NDArray[np.uint8] | None = None,
) -> Array:
    """The array of a TensorProto.

    limit: bytes of memory. raw: its data, if it lacks them. Raises ModelError if the tensor is
    broken, MemoryLimitError if its shape alone exceeds the limit.
    """
    dtype = dtype_from_onnx(tensor.data_type, where)
    shape = tuple(int(d) for d in tensor.dims)
    if any(d < 0 for d in shape):
        raise ModelError(f"its shape {list(shape)} has a negative extent", where=where)
    count = math.prod(shape)
    if count * dtype.itemsize > limit:
        raise MemoryLimitError(
            f"its shape {list(shape)} of {dtype} needs {count * dtype.itemsize:,} bytes, over the "
            f"memory limit of {limit:,} bytes",
            where=where,
            hint=limits.MORE_MEMORY,
        )
    if math.prod(d for d in shape if d) * dtype.itemsize > sys.maxsize:
        raise MemoryLimitError(
            f"its shape {list(shape)} has extents beyond any address, though it has no "
            "elements; the limit is 2^63 bytes",
            where=where,
        )
    size = -(-count * dtype.bits // 8)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return _from_bytes(external.read(tensor, size, rules, where), dtype, shape)
    if raw is None and tensor.HasField("raw_data"):
        raw = np.frombuffer(tensor.raw_data, np.uint8)
    if raw is not None:
        if raw.size != size:
            raise ModelError(
                f"its data has {raw.size} bytes, its shape {list(shape)} of {dtype} needs {size}",
                where=where,
            )
        return _from_bytes(raw, dtype, shape)
    try:
        return np.asarray(onnx.numpy_helper.to_array(tensor), dtype.numpy).reshape(
            shape
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise ModelError(
            f"its data does not fit its shape: {error}", where=where
        ) from None


def is_view(tensor: Any, raw: NDArray[np.uint8] | None) -> bool:
    """Whether the array of a TensorProto is its data as they are: no copy, in a file or here."""
    is_outside = tensor.data_location == onnx.TensorProto.EXTERNAL
    dtype = dtype_from_onnx(tensor.data_type, "")
    return (is_outside or raw is not None) and not dtype.is_sub_byte


def _from_bytes(raw: Array, dtype: DType, shape: tuple[int, ...]) -> Array:
    if dtype.is_sub_byte:
        count = math.prod(shape)
        return _unpack(raw, dtype, count).reshape(shape)
    return raw.view(dtype.numpy).reshape(shape)


def _unpack(raw: Array, dtype: DType, count: int) -> Array:
    """Unpack a stream of values narrower than a byte to one value per byte, low bits first."""
    bits = np.unpackbits(raw, bitorder="little")[: count * dtype.bits]
    values = np.packbits(
        bits.reshape(count, dtype.bits), axis=1, bitorder="little"
    ).reshape(-1)
    if dtype.is_int and dtype.is_signed:
        shift = 8 - dtype.bits
        return ((values << shift).view(np.int8) >> shift).astype(dtype.numpy)
    return values.view(dtype.numpy)


def from_sparse(sparse: Any, rules: ExternalData, limit: int, where: str) -> Array:
    """The dense array of a SparseTensorProto."""
    values = to_array(sparse.values, rules, limit, where)
    indices = to_array(sparse.indices, rules, limit, where)
    shape = tuple(int(d) for d in sparse.dims)
    count = math.prod(shape)
    if any(d < 0 for d in shape) or count * values.dtype.itemsize > limit:
        raise MemoryLimitError(
            f"its shape {list(shape)} is over the memory limit of {limit:,} bytes",
            where=where,
        )
    dense = np.zeros(shape, values.dtype)
    try:
        places: Any = indices
        if indices.ndim > 1:
            places = np.ravel_multi_index(indices.T, shape)
        dense.reshape(-1)[places] = values
    except (ValueError, IndexError) as error:
        raise ModelError(
            f"its sparse indices are broken: {error}", where=where
        ) from None
    return dense
