"""Tensor maps: what a kernel that copies boxes is told of a tensor, as the driver encodes it."""

from __future__ import annotations

from math import prod
from typing import Any, Final

from tilewright.base.dtypes import dtype_of
from tilewright.targets.cuda.driver import Driver
from tilewright.targets.simt.code import TensorMap

# By the size of an element: no type is converted, so that only this counts.
_TYPES: Final = {1: "UINT8", 2: "UINT16", 4: "UINT32", 8: "UINT64"}


def encoded(driver: Driver, m: TensorMap, address: int) -> Any:
    """The driver's description of a box of a tensor at an address. Elements outside are zero."""
    api = driver.api
    size = dtype_of(m.dtype).itemsize
    count = len(m.extents)
    # All of it from the fastest dimension on, whose stride is left out.
    strides = [size * prod(m.extents[n:]) for n in range(count - 1, 0, -1)]
    return driver(
        "TensorMapEncodeTiled",
        _named(api, "DataType", f"DATA_TYPE_{_TYPES[size]}"),
        count,
        address,
        [api.cuuint64_t(n) for n in m.extents[::-1]],
        [api.cuuint64_t(n) for n in strides],
        [api.cuuint32_t(n) for n in m.sides[::-1]],
        [api.cuuint32_t(1)] * count,
        _named(api, "Interleave", "INTERLEAVE_NONE"),
        _named(api, "Swizzle", "SWIZZLE_128B"),
        _named(api, "L2promotion", "L2_PROMOTION_L2_128B"),
        _named(api, "FloatOOBfill", "FLOAT_OOB_FILL_NONE"),
    )


def _named(api: Any, kind: str, name: str) -> Any:
    return getattr(getattr(api, f"CUtensorMap{kind}"), f"CU_TENSOR_MAP_{name}")
