"""interpolate: a pyramid that fills in what has no alpha from the levels above.

Levels are read at x // 2 and (x + 1) // 2 on the way up, and slide down the image together.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from examples.halide_apps.app import F32, App

LEVELS = 10


def build(hl: Any, image: Any) -> Any:
    """The interpolated image, three planes of floats; `image` has a fourth, its alpha."""
    x, y, c = (hl.Var(n) for n in "xyc")
    down = [hl.Func(f"downsampled_{n}") for n in range(LEVELS)]
    downx = [hl.Func(f"downx_{n}") for n in range(LEVELS)]
    up = [hl.Func(f"interpolated_{n}") for n in range(LEVELS)]
    two, quarter = hl.f32(2.0), hl.f32(0.25)

    clamped = hl.BoundaryConditions.repeat_edge(image)
    alpha = clamped[x, y, 3]
    down[0][x, y, c] = hl.select(c < 3, clamped[x, y, c] * alpha, alpha)
    for n in range(1, LEVELS):
        prev = down[n - 1]
        if n == 4:  # so that the levels above do not look far over the edges
            width, height = (image.dim(d).extent() // (1 << (n - 1)) for d in (0, 1))
            edge = hl.Func("edge")
            edge[x, y, c] = prev[hl.clamp(x, 0, width), hl.clamp(y, 0, height), c]
            prev = edge
        sides = prev[x * 2 - 1, y, c] + two * prev[x * 2, y, c] + prev[x * 2 + 1, y, c]
        downx[n][x, y, c] = sides * quarter
        rows = [downx[n][x, y * 2 + d, c] for d in (-1, 0, 1)]
        down[n][x, y, c] = (rows[0] + two * rows[1] + rows[2]) * quarter
    up[-1][x, y, c] = down[-1][x, y, c]
    for n in reversed(range(LEVELS - 1)):
        upx, both = hl.Func(f"upsampledx_{n}"), hl.Func(f"upsampled_{n}")
        above = up[n + 1]
        upx[x, y, c] = (above[x // 2, y, c] + above[(x + 1) // 2, y, c]) / two
        both[x, y, c] = (upx[x, y // 2, c] + upx[x, (y + 1) // 2, c]) / two
        missing = hl.f32(1.0) - down[n][x, y, 3]
        up[n][x, y, c] = down[n][x, y, c] + missing * both[x, y, c]
    output = hl.Func("normalize")
    output[x, y, c] = up[0][x, y, c] / up[0][x, y, 3]
    schedule(hl, image, down, downx, up, output)
    return output


def schedule(hl: Any, image: Any, down: Any, downx: Any, up: Any, output: Any) -> None:
    """Levels of the way down by themselves; those of the way up in strips of the output."""
    x, y, c = (hl.Var(n) for n in "xyc")
    xo, xi, yo, yi = (hl.Var(n) for n in ("xo", "xi", "yo", "yi"))
    for f in down[1:-1]:
        f.compute_root().reorder(x, c, y).split(y, yo, yi, 8).parallel(yo)
        f.vectorize(x, F32)
    first = down[0].clone_in(downx[1])
    first.store_at(down[1], yo).compute_at(down[1], yi)
    first.reorder(c, x, y).unroll(c).vectorize(x, F32)
    output.bound(x, 0, image.dim(0).extent()).bound(y, 0, image.dim(1).extent())
    output.bound(c, 0, 3).split(x, xo, xi, F32).split(y, yo, yi, 32)
    output.reorder(xi, c, xo, yi, yo).unroll(c).vectorize(xi).parallel(yo)
    for f in up[1:]:
        f.store_at(output, yo).compute_at(output, yi).vectorize(x, F32)


def images(rng: Any, width: int, height: int) -> tuple[Any, ...]:
    """Four planes: three colors and alpha."""
    return (rng.random((4, height, width), dtype=np.float32),)


APP = App(
    build,
    images,
    lambda width, height: ((0, width), (0, height), (0, 3)),
    size=(1536, 2560),
    small=(96, 64),
    tolerance=1e-5,
)
