"""QPSK to 256-QAM with the Gray labels of 3GPP TS 38.211, section 5.1.

Real and imaginary part carry every other bit each, so that a constellation is one axis of levels.
"""

from __future__ import annotations

from itertools import product

import numpy as np

BITS = {"QPSK": 2, "16QAM": 4, "64QAM": 6, "256QAM": 8}


def level(bits: tuple[int, ...]) -> int:
    """The odd integer that stands for the bits of one axis: (1 - 2a)(4 - (1 - 2b)(2 - ...))."""
    sign = 1 - 2 * bits[0]
    if len(bits) == 1:
        return sign
    return sign * (2 ** (len(bits) - 1) - level(bits[1:]))


def axis(name: str) -> list[tuple[tuple[int, ...], float]]:
    """Labels and levels of one axis, scaled so that a symbol has unit energy on average."""
    half = BITS[name] // 2
    scale = np.sqrt(2 * (4**half - 1) / 3)
    return [(bits, level(bits) / scale) for bits in product((0, 1), repeat=half)]


def modulate(bits: np.ndarray, name: str) -> np.ndarray:
    """Symbols of bits: (bits, ...) of 0 and 1 to complex128 of shape (...)."""
    levels = np.array([value for _, value in axis(name)])
    half = BITS[name] // 2
    weights = 2 ** np.arange(half)[::-1]
    real, imaginary = (
        levels[np.tensordot(weights, part, 1)] for part in (bits[::2], bits[1::2])
    )
    return real + 1j * imaginary
