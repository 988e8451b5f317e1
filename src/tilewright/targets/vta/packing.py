"""Numbers of less than a byte as stored in memory: the first in the low bits of a byte.

A NumPy array of `int4` or `int2` has a byte for each number; the machine's memories have not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tilewright.base.dtypes import dtype_of

Bytes = NDArray[np.uint8]


def pack(numbers: NDArray[Any], bits: int) -> Bytes:
    """The low `bits` bits (2, 4 or 8) of integers [..., n], as bytes [..., n * bits / 8]."""
    places = _places(bits)
    low = (numbers.astype(np.uint8) & (1 << bits) - 1).astype(np.uint8)
    groups = low.reshape(*low.shape[:-1], -1, len(places))
    made: Bytes = np.bitwise_or.reduce(groups << places, axis=-1)
    return made


def unpack(data: Bytes, bits: int) -> NDArray[np.int8]:
    """The signed numbers of `bits` bits (2, 4 or 8) in bytes [..., n], as [..., n * 8 / bits]."""
    places = _places(bits)
    high = (data[..., None] << (8 - bits - places)).view(np.int8)
    numbers: NDArray[np.int8] = high >> (8 - bits)
    return numbers.reshape(*data.shape[:-1], -1)


def _places(bits: int) -> Bytes:
    """Where the numbers in a byte begin."""
    return np.arange(0, 8, bits, dtype=np.uint8)


def filled(numbers: NDArray[Any], bits: int) -> NDArray[Any]:
    """Numbers [n] of fewer than 8 bits with zeros after, up to whole bytes."""
    return np.pad(numbers, (0, -len(numbers) % (8 // bits)))


def to_bytes(array: NDArray[Any]) -> bytes:
    """An array as the machine's DRAM holds it, row by row; the last byte is filled with zeros."""
    flat = np.ascontiguousarray(array).reshape(-1)
    bits = dtype_of(flat.dtype).bits
    if bits >= 8:
        return flat.tobytes()
    return pack(filled(flat.astype(np.int8), bits), bits).tobytes()


def byte_count(count: int, dtype: DTypeLike) -> int:
    """Bytes of DRAM that `count` numbers take."""
    return -(-count * dtype_of(dtype).bits // 8)


def from_bytes(data: bytes, count: int, dtype: DTypeLike) -> NDArray[Any]:
    """The inverse of `to_bytes`: an array of `count` numbers."""
    bits = dtype_of(dtype).bits
    if bits >= 8:
        return np.frombuffer(data, dtype, count).copy()
    return unpack(np.frombuffer(data, np.uint8), bits)[:count].astype(dtype)
