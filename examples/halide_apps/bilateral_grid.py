"""bilateral_grid: histograms over space and brightness, blurred, and sampled at each pixel.

The grid is read where floats say: their bounds say how large it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from examples.halide_apps.app import App

SPACE, RANGE = 8, 0.1  # pixels and brightness per cell


def build(hl: Any, image: Any) -> Any:
    """The filtered image."""
    x, y, z, c = (hl.Var(n) for n in "xyzc")
    clamped = hl.BoundaryConditions.repeat_edge(image)
    r = hl.RDom([(0, SPACE), (0, SPACE)], "r")
    cells = hl.f32(1.0 / RANGE)
    value = clamped[x * SPACE + r.x - SPACE // 2, y * SPACE + r.y - SPACE // 2]
    value = hl.clamp(value, hl.f32(0.0), hl.f32(1.0))
    zi = hl.i32(value * cells + hl.f32(0.5))

    histogram = hl.Func("histogram")
    histogram[x, y, z, c] = hl.f32(0.0)
    histogram[x, y, zi, c] += hl.mux(c, [value, hl.f32(1.0)])
    blurx, blury, blurz = hl.Func("blurx"), hl.Func("blury"), hl.Func("blurz")
    blurz[x, y, z, c] = five_taps(histogram, lambda d: (x, y, z + d, c))
    blurx[x, y, z, c] = five_taps(blurz, lambda d: (x + d, y, z, c))
    blury[x, y, z, c] = five_taps(blurx, lambda d: (x, y + d, z, c))

    value = hl.clamp(image[x, y], hl.f32(0.0), hl.f32(1.0))
    zv = value * cells
    zi = hl.i32(zv)
    zf = zv - hl.f32(zi)
    xf, yf = (hl.f32(v % SPACE) / hl.f32(SPACE) for v in (x, y))
    xi, yi = x // SPACE, y // SPACE

    def plane(z: Any) -> Any:
        near = hl.lerp(blury[xi, yi, z, c], blury[xi + 1, yi, z, c], xf)
        far = hl.lerp(blury[xi, yi + 1, z, c], blury[xi + 1, yi + 1, z, c], xf)
        return hl.lerp(near, far, yf)

    sampled, output = hl.Func("interpolated"), hl.Func("bilateral_grid")
    sampled[x, y, c] = hl.lerp(plane(zi), plane(zi + 1), zf)
    output[x, y] = sampled[x, y, 0] / sampled[x, y, 1]

    blurz.compute_at(blurx, y).reorder(c, z, x, y).vectorize(x, 8).unroll(c)
    histogram.compute_at(blurz, y)
    histogram.update().reorder(c, r.x, r.y, x, y).unroll(c)
    blurx.compute_root().reorder(c, x, z, y).parallel(y).vectorize(x, 8).unroll(c)
    blury.compute_at(output, y).store_in(hl.MemoryType.Stack).reorder(c, x, y, z)
    blury.reorder_storage(c, z, x, y).vectorize(x, 8).unroll(c)
    output.compute_root().parallel(y, 8).vectorize(x, 8)
    return output


def five_taps(f: Any, at: Callable[[int], tuple[Any, ...]]) -> Any:
    """The filter 1 4 6 4 1 along the way that `at` moves."""
    return f[at(-2)] + f[at(-1)] * 4 + f[at(0)] * 6 + f[at(1)] * 4 + f[at(2)]


def images(rng: Any, width: int, height: int) -> tuple[Any, ...]:
    """Brightness from 0 to 1."""
    return (rng.random((height, width), dtype=np.float32),)


APP = App(
    build,
    images,
    lambda width, height: ((0, width), (0, height)),
    size=(1536, 2560),
    small=(96, 64),
    tolerance=1e-5,
)
