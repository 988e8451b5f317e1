"""Random contents for a model's inputs."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.dtypes import DType
from tilewright.base.errors import MemoryLimitError
from tilewright.base.text import human_bytes

Array = np.ndarray[Any, Any]


def random_array(name: str, dtype: DType, shape: Sequence[int], seed: int) -> Array:
    """Seeded values of one tensor: normally distributed floats, integers 0 or 1, booleans.

    The values depend only on the name and the seed, not on the order of calls. Raises
    MemoryLimitError if the machine cannot hold them.
    """
    rng = np.random.default_rng([zlib.crc32(name.encode()), seed])
    try:
        if dtype.is_float:
            values = rng.standard_normal(shape, dtype=np.float32)
            return (
                np.abs(values).astype(dtype.numpy)
                if not dtype.is_signed
                else _cast(values, dtype)
            )
        if dtype.is_complex:
            both = rng.standard_normal((2, *shape))
            return np.asarray(both[0] + 1j * both[1]).astype(dtype.numpy)
        return rng.integers(0, 2, shape).astype(dtype.numpy)
    except (MemoryError, ValueError):
        size = dtype.itemsize * int(np.prod(np.array(shape, dtype=object)))
        raise MemoryLimitError(
            f"{dtype.name}{list(shape)} has {human_bytes(size)}, which cannot be allocated",
            where=f"input {name!r}",
            hint="give smaller dimensions",
        ) from None


def _cast(values: Array, dtype: DType) -> Array:
    return values.astype(dtype.numpy, copy=False)
