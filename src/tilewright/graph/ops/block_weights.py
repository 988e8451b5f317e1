"""Weights of few bits: integers with a scale, and optionally a zero point, per block of rows.

Element (k, n) of the matrix is `(q[k, n] - zero[k // block, n]) * scale[k // block, n]`. The last
block may be partial. `MatMulNBits` of com.microsoft stores weights this way, and ONNX's
`DequantizeLinear` with a `block_size` reads them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.numbers import ceil_div
from tilewright.graph.ops.registry import Array

BITS = (2, 4, 8)


@dataclass(frozen=True, eq=False, slots=True)
class BlockWeights:
    """A matrix of `depth` rows, N columns.

    q: uint8 [depth, N], each below 2**bits. scale: a float dtype, [blocks, N]. zero: [blocks, N] in
    uint8 or a float dtype, or a single number.
    """

    bits: int
    block: int
    q: Array
    scale: Array
    zero: Array | float

    @property
    def depth(self) -> int:
        """The number of rows, over which a product sums."""
        return int(self.q.shape[0])

    @property
    def columns(self) -> int:
        """The number of columns."""
        return int(self.q.shape[1])

    @property
    def blocks(self) -> int:
        """The number of scales per column."""
        return ceil_div(self.depth, self.block)

    def real(
        self,
        dtype: Any = np.float32,
    ) -> Array:
        """The matrix that the integers represent, computed in float32 and converted to `dtype`."""
        shift, factor = (self._spread(x) for x in (self.zero, self.scale))
        real = (self.q.astype(np.float32) - shift) * factor
        found: Array = real.astype(dtype)
        return found

    def _spread(
        self,
        x: Array | float,
    ) -> Any:
        """A parameter repeated for each element, in float32."""
        if not isinstance(x, np.ndarray):
            return np.float32(x)
        each = np.repeat(x.astype(np.float32), self.block, axis=0)
        return each[: self.depth]

    def whole(self) -> Array:
        """q padded with zeros to whole blocks: [blocks, block, N]."""
        missing = self.blocks * self.block - self.depth
        padded = np.pad(self.q, ((0, missing), (0, 0)))
        return padded.reshape(self.blocks, self.block, self.columns)


def unpacked(
    packed: Array,
    bits: int,
) -> Array:
    """Split each byte into 8 / bits numbers, low bits first, along the last axis."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    found: Array = parts.reshape(*packed.shape[:-1], -1)
    return found


def packed(
    q: Array,
    bits: int,
) -> Array:
    """The inverse of `unpacked`: packs uint8 numbers below 2**bits into bytes along the last axis.

    The last byte is padded with zeros.
    """
    count = 8 // bits
    missing = -q.shape[-1] % count
    whole = np.pad(q, [(0, 0)] * (q.ndim - 1) + [(0, missing)])
    parts = whole.reshape(*q.shape[:-1], -1, count).astype(np.uint8)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    found: Array = np.bitwise_or.reduce(parts << shifts, axis=-1).astype(np.uint8)
    return found
