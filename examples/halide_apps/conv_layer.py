"""conv_layer: a 3x3 convolution with bias and ReLU, channels innermost, a register tile of 4x5.

The app also stages filter and input in registers, for sizes that it promises to Halide; for sizes
that are not promised, this takes Halide three times as long, and is left out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from examples.halide_apps.app import F32, App

TILE_C, TILE_X = 4, 5  # vectors of channels, columns


def build(hl: Any, image: Any, weights: Any, bias: Any) -> Any:
    """The activations of a layer."""
    x, y, c, n = (hl.Var(name) for name in ("x", "y", "c", "n"))
    co, ci, xo, xi = (hl.Var(name) for name in ("co", "ci", "xo", "xi"))
    channels = image.dim(0).extent()
    r = hl.RDom([(0, channels), (0, 3), (0, 3)], "r")
    conv, relu = hl.Func("conv"), hl.Func("relu")
    conv[c, x, y, n] = bias[c]
    conv[c, x, y, n] += weights[c, r.y, r.z, r.x] * image[r.x, x + r.y, y + r.z, n]
    relu[c, x, y, n] = hl.max(hl.f32(0), conv[c, x, y, n])

    relu.split(c, co, ci, F32 * TILE_C).split(x, xo, xi, TILE_X)
    relu.reorder(ci, xi, xo, y, n, co).vectorize(ci, F32).unroll(ci).unroll(xi)
    relu.parallel(y).parallel(n).parallel(co)
    conv.compute_at(relu, xo).vectorize(c, F32).unroll(c).unroll(x).unroll(y)
    update = conv.update().reorder(c, x, y, r.x, r.y, r.z, n)
    update.vectorize(c, F32).unroll(c).unroll(x).unroll(y).unroll(r.x, 2)
    return relu


def images(
    rng: Any, width: int, height: int, channels: int, batch: int
) -> tuple[Any, ...]:
    """Input, weights and bias; as many channels out as in."""
    shapes = (
        (batch, height + 2, width + 2, channels),
        (channels, 3, 3, channels),
        (channels,),
    )
    return tuple(rng.standard_normal(s).astype(np.float32) for s in shapes)


APP = App(
    build,
    images,
    lambda width, height, channels, batch: (
        (0, channels),
        (0, width),
        (0, height),
        (0, batch),
    ),
    size=(100, 80, 128, 1),
    small=(10, 4, 64, 1),
    tolerance=1e-5,
)
