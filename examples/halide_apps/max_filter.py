"""max_filter: the maximum over a disk, from vertical maxima over heights of powers of two."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from examples.halide_apps.app import App

RADIUS = 26


def build(hl: Any, image: Any) -> Any:
    """The filtered planes, with repeated edges."""
    x, y, c, t, tx = (hl.Var(name) for name in ("x", "y", "c", "t", "tx"))
    edges = [(d.min(), d.extent()) for d in (image.dim(0), image.dim(1))]
    bounded = hl.BoundaryConditions.repeat_edge(image, edges)
    slices = math.ceil(math.log2(RADIUS)) + 1

    # Maxima over 1, 2, 4, ... rows, downwards.
    vert_log = hl.Func("vert_log")
    vert_log[x, y, c, t] = bounded[x, y, c]
    r = hl.RDom([(-RADIUS, image.height() + RADIUS), (1, slices - 1)], "r")
    below = r.x + hl.clamp(hl.i32(1) << (r.y - 1), 0, RADIUS * 2)
    vert_log[x, r.x, c, r.y] = hl.max(
        vert_log[x, r.x, c, r.y - 1], vert_log[x, below, c, r.y - 1]
    )

    # Two of them make a maximum over any height.
    slice_for_radius, vert = hl.Func("slice_for_radius"), hl.Func("vert")
    slice_for_radius[t] = hl.i32(
        hl.floor(hl.log(hl.f32(2 * t + 1)) / hl.f32(math.log(2)))
    )
    chosen = hl.clamp(slice_for_radius[t], 0, slices)
    first = vert_log[x, y - t, c, chosen]
    step = hl.clamp(hl.i32(1) << chosen, 0, 2 * RADIUS)
    vert[x, y, c, t] = hl.max(first, vert_log[x, y + t + 1 - step, c, chosen])

    # The heights of the disk's columns, and the maximum over its columns.
    filter_height, dy = hl.Func("filter_height"), hl.RDom([(0, RADIUS + 1)], "dy")
    area = (RADIUS + 0.25) * (RADIUS + 0.25)
    inside = hl.f32(x * x + dy.x * dy.x) < hl.f32(area)
    filter_height[x] = hl.sum(hl.select(inside, 1, 0))
    dx, output = hl.RDom([(-RADIUS, 2 * RADIUS + 1)], "dx"), hl.Func("output")
    height = hl.clamp(filter_height[dx.x], 0, RADIUS + 1)
    output[x, y, c] = hl.maximum(vert[x + dx.x, y, c, height])

    slice_for_radius.compute_root()
    filter_height.compute_root()
    output.compute_root().split(x, tx, x, 256).reorder(x, y, c, tx).fuse(c, tx, t)
    output.parallel(t).vectorize(x, 8)
    vert_log.compute_at(output, t).vectorize(x, 8)
    vert_log.update().reorder(x, r.x, r.y, c).vectorize(x, 8)
    vert.compute_at(output, y).vectorize(x, 8)
    return output


def images(rng: Any, width: int, height: int) -> tuple[Any, ...]:
    """Three planes of floats."""
    return (rng.random((3, height, width), dtype=np.float32),)


APP = App(
    build,
    images,
    lambda width, height: ((0, width), (0, height), (0, 3)),
    size=(768, 640),
    small=(300, 60),
)
