"""iir_blur: a recursive low-pass filter down and up the columns, a transpose, and once more."""

from __future__ import annotations

from typing import Any

import numpy as np

from examples.halide_apps.app import F32, App

ALPHA = 0.1


def build(hl: Any, image: Any) -> Any:
    """The blurred image, three planes of floats."""
    width, height = image.dim(0).extent(), image.dim(1).extent()
    return blurred(hl, blurred(hl, image, height), width)


def blurred(hl: Any, source: Any, height: Any) -> Any:
    """The columns of `source` blurred, as rows."""
    x, y, c = (hl.Var(n) for n in "xyc")
    new, kept = hl.f32(ALPHA), hl.f32(1 - ALPHA)
    blur, transpose = hl.Func("blur"), hl.Func("transpose")
    down = hl.RDom([(1, height - 1)], "ry")
    up = height - down - 1
    blur[x, y, c] = hl.undef(hl.Float(32))
    blur[x, 0, c] = source[x, 0, c]
    blur[x, down, c] = kept * blur[x, down - 1, c] + new * source[x, down, c]
    blur[x, up, c] = kept * blur[x, up + 1, c] + new * blur[x, up, c]
    transpose[x, y, c] = blur[y, x, c]

    xo, yo, yi, t = (hl.Var(n) for n in ("xo", "yo", "yi", "t"))
    transpose.compute_root().tile(x, y, xo, yo, x, y, F32, 4 * F32)
    transpose.split(y, y, yi, F32).vectorize(yi).vectorize(x)
    transpose.fuse(yo, c, t).parallel(t)
    blur.compute_at(transpose, t)
    for n in (1, 2):
        blur.update(n).reorder(x, down).vectorize(x)
    return transpose


def images(rng: Any, width: int, height: int) -> tuple[Any, ...]:
    """Three planes of floats."""
    return (rng.random((3, height, width), dtype=np.float32),)


APP = App(
    build,
    images,
    lambda width, height: ((0, width), (0, height), (0, 3)),
    size=(1536, 2560),
    small=(64, 128),
    tolerance=1e-5,
)
