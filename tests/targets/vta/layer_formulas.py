"""Layers by NumPy, in the layout of any machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta import INP, Convolution, LayerProgram, Requantize, VTAConfig
from tilewright.targets.vta.intrinsics import elements


def random_arrays(layer: LayerProgram) -> list[NDArray]:
    """All numbers that operands can have; for other parameters those of a byte."""
    rng = np.random.default_rng(0)
    made = []
    for b in layer.params:
        low, high = max(-128, int(b.dtype.min)), min(127, int(b.dtype.max))
        made.append(rng.integers(low, high + 1, b.shape).astype(b.dtype.numpy))
    return made


def images(x: NDArray, config: VTAConfig) -> NDArray:
    """Tiles [C/B, H, W, tile] as numbers [C, H, W, N]."""
    ct, h, w, *_ = x.shape
    split = x.astype(np.int32).reshape(ct, h, w, config.BATCH, config.BLOCK)
    return split.transpose(0, 4, 1, 2, 3).reshape(-1, h, w, config.BATCH)


def tiles(y: NDArray, config: VTAConfig) -> NDArray:
    """The inverse, with both dimensions of a tile."""
    _, h, w, n = y.shape
    split = y.reshape(-1, config.BLOCK, h, w, n)
    return split.transpose(0, 2, 3, 4, 1)


def windows(
    c: Convolution, image: NDArray, outside: int
) -> Iterator[tuple[tuple[int, ...], NDArray]]:
    """At every offset in the window, what all windows have there; image [C, H, W, ...]."""
    behind = (r - p - h for r, p, h in zip(c.reach, c.pads, c.size, strict=True))
    sides = [(p, max(0, e)) for p, e in zip(c.pads, behind, strict=True)]
    image = np.pad(image, ((0, 0), *sides, (0, 0)), constant_values=outside)
    rows, columns = c.out_size
    for k in product(*map(range, c.kernel)):
        y, x = (at * d for at, d in zip(k, c.dilation, strict=True))
        yield k, image[:, y :: c.stride[0], x :: c.stride[1]][:, :rows, :columns]


def convolved(
    c: Convolution, q: Requantize, config: VTAConfig, given: Sequence[NDArray]
) -> NDArray:
    x, w, *more = given
    weights = w.astype(np.int32).transpose(0, 4, 1, 5, 2, 3)
    weights = weights.reshape(c.outputs, c.inputs, *c.kernel)
    total = np.zeros((c.outputs, *c.out_size, config.BATCH), np.int32)
    for (ky, kx), part in windows(c, images(x, config), 0):
        total += np.tensordot(weights[:, :, ky, kx], part, 1)
    return stored(tiles(total, config), q, config, more)


def depthwise_convolved(
    c: Convolution, q: Requantize, config: VTAConfig, given: Sequence[NDArray]
) -> NDArray:
    x, w, *more = given
    weights = images(w, config)
    total = np.zeros((c.inputs, *c.out_size, config.BATCH), np.int32)
    for (ky, kx), part in windows(c, images(x, config), 0):
        total += weights[:, ky, kx][:, None, None] * part
    return stored(tiles(total, config), q, config, more)


def pooled(c: Convolution, config: VTAConfig, given: Sequence[NDArray]) -> NDArray:
    parts = [part for _, part in windows(c, images(given[0], config), -128)]
    most = tiles(np.max(parts, 0), config)
    return in_dtype(most, config)


def stored(
    total: NDArray, q: Requantize, config: VTAConfig, more: Sequence[NDArray]
) -> NDArray:
    """What follows the sums, [C/B, H, W, batch, B]."""
    rest = [a.astype(np.int32) for a in more]
    tile = config.BATCH, config.BLOCK
    if q.bias:
        total = total + rest.pop(0).reshape(-1, 1, 1, *tile)
    factor = np.int32(1 if q.factor is None else q.factor)
    factors = rest.pop(0).reshape(-1, 1, 1, *tile) if q.factor is None else factor
    total = (total >> q.before) * factors
    if q.residual is not None:
        total = total + rest.pop(0).reshape(total.shape) * np.int32(q.residual)
    kind = elements(config)[INP].dtype
    low, high = 0 if q.relu else int(kind.min), min(q.high, int(kind.max))
    return in_dtype(np.clip(total >> q.shift, low, high), config)


def in_dtype(y: NDArray, config: VTAConfig) -> NDArray:
    kind = elements(config)[INP].dtype.numpy
    return y.reshape(*y.shape[:3], *config.tile).astype(kind)
