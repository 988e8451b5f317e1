"""depthwise_separable_conv: MobileNet's pair of convolutions in one nest, padded by zeros."""

from __future__ import annotations

from typing import Any

import numpy as np

from examples.halide_apps.app import F32, App

TILE_D, TILE_X, TILE_Y = F32, 6, 4


def build(hl: Any, image: Any, depthwise: Any, pointwise: Any, bias: Any) -> Any:
    """The activations after both convolutions."""
    x, y, d, b = (hl.Var(name) for name in ("x", "y", "d", "b"))
    di, xi, yi = (hl.Var(name) for name in ("di", "xi", "yi"))
    ro, ri = hl.RVar("ro"), hl.RVar("ri")
    width, height = image.dim(1).extent(), image.dim(2).extent()
    bounded = hl.Func("input_bounded")
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    nearest = image[
        d, hl.clamp(x, 0, image.dim(1).max()), hl.clamp(y, 0, image.dim(2).max()), b
    ]
    bounded[d, x, y, b] = hl.select(inside, nearest, hl.f32(0.0))

    deep = hl.Func("depthwise_convolved")
    extents = [depthwise.dim(n).extent() for n in (0, 2, 3)]
    rd = hl.RDom([(0, e) for e in extents], "rd")
    column, row = x + rd.y - extents[1] // 2, y + rd.z - extents[2] // 2
    deep[d, x, y, b] += (
        depthwise[rd.x, d, rd.y, rd.z] * bounded[d // extents[0], column, row, b]
    )
    rc = hl.RDom([(0, pointwise.dim(1).extent())], "rc")
    wide, output = hl.Func("pointwise_convolved"), hl.Func("output")
    wide[d, x, y, b] = bias[d]
    wide[d, x, y, b] += pointwise[d, rc.x] * deep[rc.x, x, y, b]
    output[d, x, y, b] = hl.max(wide[d, x, y, b], hl.f32(0.0))

    output.split(d, d, di, TILE_D).split(x, x, xi, TILE_X).split(y, y, yi, TILE_Y)
    output.reorder(di, xi, yi, d, x, y, b).vectorize(di).unroll(xi).unroll(yi)
    output.fuse(y, b, b).parallel(b)
    wide.compute_at(output, d).vectorize(d).unroll(x).unroll(y)
    update = wide.update().reorder(d, x, y, rc.x, b).vectorize(d).unroll(x).unroll(y)
    update.split(rc.x, ro, ri, TILE_D)
    deep.store_in(hl.MemoryType.Stack).bound_extent(d, TILE_D).compute_at(wide, ro)
    deep.vectorize(d).unroll(x).unroll(y)
    update = deep.update().reorder(d, x, y, rd.x, rd.y, rd.z, b)
    update.vectorize(d).unroll(x).unroll(y)
    return output


def images(
    rng: Any, width: int, height: int, channels: int, batch: int
) -> tuple[Any, ...]:
    """Input, the filters of both convolutions, and the bias; half as many channels out."""
    out = channels // 2
    shapes = (
        (batch, height, width, channels),
        (3, 3, channels, 1),
        (channels, out),
        (out,),
    )
    return tuple(rng.standard_normal(s).astype(np.float32) for s in shapes)


APP = App(
    build,
    images,
    lambda width, height, channels, batch: (
        (0, channels // 2),
        (0, width),
        (0, height),
        (0, batch),
    ),
    size=(112, 112, 32, 4),
    small=(12, 8, 32, 1),
    tolerance=1e-5,
)
