"""The matrix unit over a whole nest: products by weight tile, sums by accumulator."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.isa import Gemm
from tilewright.targets.vta.nest import StepIndex, alike, steps
from tilewright.targets.vta.sram import Sram
from tilewright.targets.vta.uops import Indices


def gemm(i: Gemm, used: tuple[StepIndex, ...], sram: Sram) -> None:
    """Execute a GEMM; its indices have been checked.

    The order of steps does not matter: inp and wgt stay, and sums that wrap around commute.
    """
    for part in steps(i, used):
        if i.reset_reg:
            sram.acc[part[0]] = 0
        else:
            _accumulate(sram, *part)


def _accumulate(sram: Sram, dst: Indices, src: Indices, wgt: Indices) -> None:
    lanes = sram.inp.shape[-1]
    for at in alike(wgt):
        # Weight tiles that are used equally often: one batch of matrix products.
        rows = sram.inp.take(src[at], axis=0).reshape(len(at), -1, lanes)
        tiles = sram.wgt.take(wgt[at[:, 0]], axis=0)
        products = np.matmul(rows, tiles).astype(np.int32)
        _add(sram.acc, dst[at].reshape(-1), products.reshape(-1, *sram.acc.shape[1:]))


def _add(acc: NDArray[np.int32], dst: Indices, products: NDArray[np.int32]) -> None:
    """acc[dst] += products, where a dst may occur several times."""
    for at in alike(dst):
        acc[dst[at[:, 0]]] += products.take(at.T, axis=0).sum(axis=0, dtype=np.int32)
