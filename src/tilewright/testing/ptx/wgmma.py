"""`wgmma` on shared memory: descriptors, the layouts that they say, and the products.

Everything follows the PTX ISA ("Matrix Descriptor Format", "Canonical Layouts", "Register
Fragments") and is written independently of the emitter. Sums are rounded once for each instruction.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from tilewright.base.dtypes import bfloat16, float8_e4m3fn, float8_e5m2
from tilewright.testing.ptx.arithmetic import Array

GROUP: Final = 128  # threads
_SHAPE: Final = re.compile(r"m64n(\d+)k(\d+)")
_DTYPES: Final[dict[str, Any]] = {
    "f16": np.float16,
    "bf16": bfloat16.numpy,
    "e4m3": float8_e4m3fn.numpy,
    "e5m2": float8_e5m2.numpy,
}


class Descriptor(NamedTuple):
    """A factor in shared memory. start, leading, stride: bytes."""

    start: int
    leading: int
    stride: int

    @staticmethod
    def of(bits: int) -> Descriptor:
        """Raises NotImplementedError for another layout than rows of 128 swizzled bytes."""
        start, leading, stride = ((bits >> at & 0x3FFF) << 4 for at in (0, 16, 32))
        if bits >> 62 != 1 or bits >> 49 & 7:
            raise NotImplementedError("PTX wgmma without a swizzle of 128 bytes")
        return Descriptor(start, leading, stride)

    def places(self, side: int, depth: int, is_turned: bool, item: int = 2) -> Array:
        """Where each element begins, by its place beside the sum and along it. item: its bytes."""
        i, k = np.ogrid[:side, :depth]
        if is_turned:  # 64 elements beside the sum are a row, and 8 rows one pattern
            row = k % 8 * 128 + i % 64 * item
            found = row + i // 64 * self.leading + k // 8 * self.stride
        else:
            found = i % 8 * 128 + i // 8 * self.stride + k * item
        at = self.start + found
        swizzled: Array = at ^ (at >> 7 & 7) << 4
        return swizzled


def item_of(of: str) -> int:
    """Bytes of an element."""
    return int(np.dtype(_DTYPES[of]).itemsize)


def shape_of(mode: str, of: str) -> tuple[int, int]:
    """The columns and the depth of an instruction. Raises NotImplementedError for another shape."""
    found = _SHAPE.fullmatch(mode)
    if found is None or of not in _DTYPES or int(found[2]) * item_of(of) != 32:
        raise NotImplementedError(f"PTX wgmma.{mode} of {of}")
    return int(found[1]), int(found[2])


def matrix(memory: Array, bytes_: Array, of: str) -> Array:
    """A factor, of whose elements these are the places of all bytes. memory: of a block."""
    raw = np.ascontiguousarray(memory[bytes_])
    numbers: Array = raw.view(_DTYPES[of])[..., 0].astype(np.float64)
    return numbers


def accumulator(columns: int) -> Sequence[tuple[Array, Array]]:
    """The rows and columns that the threads have in each of their registers."""
    thread = np.arange(GROUP)
    row = thread // 32 * 16 + thread % 32 // 4
    column = thread % 4 * 2
    return [
        (row + n // 2 % 2 * 8, column + n // 4 * 8 + n % 2) for n in range(columns // 2)
    ]
