"""Seeded weights: every tensor of every network is drawn from its own generator name."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from typing import TypeVar

import numpy as np

Array = np.ndarray
Module = TypeVar("Module")

# A residual branch is added to the stream this many times weaker than the stream itself, so that
# the variance after sixteen blocks is still of the order of the first block's.
RESIDUAL = 0.3


def generator(network: str, tensor: str) -> np.random.Generator:
    """The random generator of one tensor; it does not depend on the order of drawing."""
    return np.random.default_rng(
        [zlib.crc32(network.encode()), zlib.crc32(tensor.encode())]
    )


def matrix(rng: np.random.Generator, shape: tuple[int, ...], gain: float) -> Array:
    """Normal float32 weights of variance gain/fan_in; fan_in is the product of shape[1:].

    gain 2 keeps the variance through a rectifier (He et al. 2015), gain 1 through a linear map.
    """
    scale = np.float32(math.sqrt(gain / math.prod(shape[1:])))
    return rng.standard_normal(shape, dtype=np.float32) * scale


def _normal(mean: float, spread: float) -> Callable[..., Array]:
    def draw(rng: np.random.Generator, shape: tuple[int, ...], gain: float) -> Array:
        values = mean + spread * rng.standard_normal(shape, dtype=np.float32)
        return (values * np.float32(gain)).astype(np.float32)

    return draw


def _variance(rng: np.random.Generator, shape: tuple[int, ...], gain: float) -> Array:
    return (rng.uniform(0.5, 1.5, shape) * gain).astype(np.float32)


ROLES: dict[str, Callable[..., Array]] = {
    "matrix": matrix,
    "bias": _normal(0.0, 0.05),
    "scale": _normal(1.0, 0.1),
    "shift": _normal(0.0, 0.1),
    "mean": _normal(0.0, 0.1),
    "var": _variance,
    "table": _normal(0.0, 1.0),
}


def draw(
    network: str, tensor: str, role: str, shape: tuple[int, ...], gain: float = 1.0
) -> Array:
    """One float32 tensor of a network in the given role (a key of ROLES)."""
    return ROLES[role](generator(network, tensor), tuple(shape), gain)


def gained(module: Module, gain: float) -> Module:
    """Notes on a torch module what its drawn weights are multiplied with (of matrices, the
    variance)."""
    module.weight_gain = gain  # type: ignore[attr-defined]
    return module
