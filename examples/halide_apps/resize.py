"""resize: a smaller image by a cubic filter, whose taps begin where floats say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from examples.halide_apps.app import F32, App

TAPS = 4


def cubic(hl: Any, x: Any) -> Any:
    """The filter's weight at a distance."""
    a, one = hl.f32(-0.5), hl.f32(1.0)
    x1 = hl.abs(x)
    x2 = x1 * x1
    x3 = x2 * x1
    near = hl.f32(1.5) * x3 - hl.f32(2.5) * x2 + one
    far = a * x3 + hl.f32(2.5) * x2 - hl.f32(4.0) * x1 + hl.f32(2.0)
    return hl.select(x1 < one, near, hl.select(x1 < hl.f32(2.0), far, hl.f32(0.0)))


def resized(hl: Any, image: Any, scale: float) -> Any:
    """The image at `scale` times its size; below 1 the filter is wider, and x comes last."""
    x, y, c, k = (hl.Var(n) for n in "xyck")
    inverse = hl.f32(1.0 / scale)
    narrow = min(scale, 1.0)
    taps = math.ceil(TAPS / narrow)
    r = hl.RDom([(0, taps)], "r")

    def kernel(v: Any, name: str, extent: Any) -> tuple[Any, Any, Any, Any]:
        half, radius = hl.f32(0.5), hl.f32(0.5 * TAPS / narrow)
        source = (hl.f32(v) + half) * inverse - half
        begin = hl.clamp(hl.i32(hl.ceil(source - radius)), 0, extent - taps)
        raw, total = hl.Func(f"unnormalized_{name}"), hl.Func(f"{name}_sum")
        weights = hl.Func(name)
        raw[v, k] = cubic(hl, (hl.f32(k + begin) - source) * hl.f32(narrow))
        total[v] = hl.sum(raw[v, r])
        weights[v, k] = raw[v, k] / total[v]
        return begin, raw, total, weights

    beginx, rawx, sumx, kx = kernel(x, "kernel_x", image.dim(0).extent())
    beginy, rawy, sumy, ky = kernel(y, "kernel_y", image.dim(1).extent())
    across, down, output = hl.Func("resized_x"), hl.Func("resized_y"), hl.Func("output")
    if scale > 1:
        across[x, y, c] = hl.sum(kx[x, r] * image[r + beginx, y, c])
        down[x, y, c] = hl.sum(ky[y, r] * across[x, r + beginy, c])
        last = down
    else:
        down[x, y, c] = hl.sum(ky[y, r] * image[x, r + beginy, c])
        across[x, y, c] = hl.sum(kx[x, r] * down[r + beginx, y, c])
        last = across
    output[x, y, c] = hl.clamp(last[x, y, c], hl.f32(0.0), hl.f32(1.0))

    xi, yi = hl.Var("xi"), hl.Var("yi")
    rawx.compute_at(kx, x).store_in(hl.MemoryType.Stack).vectorize(x)
    sumx.compute_at(kx, x).vectorize(x)
    kx.compute_root().reorder(k, x).vectorize(x, F32)
    rawy.compute_at(ky, y).vectorize(y, F32)
    sumy.compute_at(ky, y).vectorize(y)
    ky.compute_at(output, y).reorder(k, y).vectorize(y, F32)
    if scale > 1:
        output.tile(x, y, xi, yi, 16, 64).parallel(y).vectorize(xi)
        across.compute_at(output, x).vectorize(x)
    else:
        output.tile(x, y, xi, yi, 32, 8).parallel(y).vectorize(xi)
        down.compute_at(output, y).vectorize(x, F32)
    last.compute_at(output, xi).unroll(c)
    return output


def build(hl: Any, image: Any) -> Any:
    """The image at half its size, three planes of floats."""
    return resized(hl, image, 0.5)


def images(rng: Any, width: int, height: int) -> tuple[Any, ...]:
    """Three planes of floats."""
    return (rng.random((3, height, width), dtype=np.float32),)


APP = App(
    build,
    images,
    lambda width, height: ((0, width // 2), (0, height // 2), (0, 3)),
    size=(1536, 1280),
    small=(128, 64),
    tolerance=1e-5,
)
