"""The same receiver in NumPy and double precision, as plainly as it can be said."""

from __future__ import annotations

import numpy as np
from modulation import axis
from slot import Layout, Slot, comb, signs


def estimate(layout: Layout, slot: Slot) -> np.ndarray:
    """Least squares, linear between reference symbols: (antennas, layers, subcarriers)."""
    at = np.arange(layout.subcarriers)
    found = np.empty((layout.antennas, layout.layers, layout.subcarriers), complex)
    raw = slot.received[: layout.pilots] * slot.pilots.conj()[:, None]
    for layer, sign in enumerate(signs(layout)):
        first = comb(layer)
        pairs = np.stack([raw[..., first::4], raw[..., first + 2 :: 4]], -1)
        at_pairs = np.einsum("tf,tmgf->mg", sign, pairs) / (2 * layout.pilots)
        places = np.arange(0, layout.subcarriers, 4) + first + 1
        for antenna, values in enumerate(at_pairs):
            found[antenna, layer] = np.interp(at, places, values)
    return found


def detect(h: np.ndarray, y: np.ndarray, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Unbiased MMSE. h: (antennas, layers, subcarriers); y: (symbols, antennas, subcarriers).

    Returns symbols (layers, symbols, subcarriers) and their error variances (layers, subcarriers).
    """
    h, y = np.moveaxis(h, -1, 0), y.transpose(2, 1, 0)
    adjoint = h.conj().swapaxes(1, 2)
    gram = adjoint @ h
    filtered = np.linalg.solve(gram + noise * np.eye(h.shape[2]), adjoint)
    bias = np.einsum("skm,smk->sk", filtered, h).real
    found = filtered @ y / bias[..., None]
    return found.transpose(1, 2, 0), (1 / bias - 1).T


def demap(x: np.ndarray, variance: np.ndarray, modulation: str) -> np.ndarray:
    """Max-log likelihood ratios log P(0)/P(1) of the bits: (bits, layers, symbols, subcarriers)."""
    ratios = []
    labels = axis(modulation)
    for bit in range(len(labels[0][0])):
        for part in (x.real, x.imag):
            near = [
                min_distance(part, [v for bits, v in labels if bits[bit] == value])
                for value in (1, 0)
            ]
            ratios.append((near[0] - near[1]) / variance[:, None])
    return np.stack(ratios)


def min_distance(x: np.ndarray, levels: list[float]) -> np.ndarray:
    """The least squared distance of each element to one of the levels."""
    return np.min([(x - level) ** 2 for level in levels], axis=0)
