"""Micro-ops: 32 bits with indices of the accumulators, the source and the weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.config import VTAConfig
from tilewright.targets.vta.errors import VTAError

Indices = NDArray[np.int64]


def pack_uops(
    dst: Indices, src: Indices, wgt: Indices, config: VTAConfig
) -> NDArray[np.uint32]:
    """Micro-ops of arrays of indices. Raises VTAError for an index beyond its bits."""
    word = np.zeros(len(dst), np.int64)
    at = 0
    for name, index, width in zip(
        ("dst", "src", "wgt"), (dst, src, wgt), config.uop_widths
    ):
        wrong = np.flatnonzero((index < 0) | (index >> width))
        if len(wrong):
            found = index[wrong[0]]
            raise VTAError(f"{name} is {found}, expected 0 to {(1 << width) - 1}")
        word |= index << at
        at += width
    return word.astype("<u4")


def unpack_uops(
    uops: NDArray[np.uint32], config: VTAConfig
) -> tuple[Indices, Indices, Indices]:
    """The indices (dst, src, wgt) of micro-ops."""
    word = uops.astype(np.int64)
    parts = []
    at = 0
    for width in config.uop_widths:
        parts.append(word >> at & (1 << width) - 1)
        at += width
    dst, src, wgt = parts
    return dst, src, wgt
