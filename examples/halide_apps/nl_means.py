"""nl_means: the mean of neighbors, weighted by how alike the patches around them are."""

from __future__ import annotations

from typing import Any

import numpy as np

from examples.halide_apps.app import F32, App

PATCH, SEARCH, SIGMA = 7, 7, 0.12


def build(hl: Any, image: Any) -> Any:
    """Three planes without noise."""
    x, y, c, dx, dy = (hl.Var(name) for name in ("x", "y", "c", "dx", "dy"))
    tx, ty = hl.Var("tx"), hl.Var("ty")
    scale = hl.f32(-1.0 / (SIGMA * SIGMA * PATCH * PATCH))
    clamped = hl.BoundaryConditions.repeat_edge(image)

    # How much the patches around (x, y) and (x + dx, y + dy) differ.
    dc, d = hl.Func("dc"), hl.Func("d")
    apart = clamped[x, y, c] - clamped[x + dx, y + dy, c]
    dc[x, y, dx, dy, c] = apart * apart
    channels = hl.RDom([(0, 3)], "channels")
    d[x, y, dx, dy] = hl.sum(dc[x, y, dx, dy, channels.x])
    patch = hl.RDom([(-(PATCH // 2), PATCH)], "patch")
    blur_d_y, blur_d = hl.Func("blur_d_y"), hl.Func("blur_d")
    blur_d_y[x, y, dx, dy] = hl.sum(d[x, y + patch.x, dx, dy])
    blur_d[x, y, dx, dy] = hl.sum(blur_d_y[x + patch.x, y, dx, dy])
    w = hl.Func("w")
    w[x, y, dx, dy] = hl.fast_exp(blur_d[x, y, dx, dy] * scale)

    with_alpha = hl.Func("clamped_with_alpha")
    planes = [clamped[x, y, 0], clamped[x, y, 1], clamped[x, y, 2], hl.f32(1.0)]
    with_alpha[x, y, c] = hl.mux(c, planes)
    reach = (-(SEARCH // 2), SEARCH)
    s = hl.RDom([reach, reach], "s")
    total, output = hl.Func("non_local_means_sum"), hl.Func("non_local_means")
    total[x, y, c] += w[x, y, s.x, s.y] * with_alpha[x + s.x, y + s.y, c]
    output[x, y, c] = hl.clamp(
        total[x, y, c] / total[x, y, 3], hl.f32(0.0), hl.f32(1.0)
    )

    output.compute_root().reorder(c, x, y).tile(x, y, tx, ty, x, y, 16, 8)
    output.parallel(ty).vectorize(x, F32)
    blur_d_y.compute_at(output, tx).hoist_storage(output, ty)
    blur_d_y.reorder(y, x).vectorize(x, F32)
    d.compute_at(output, tx).hoist_storage(output, ty).vectorize(x, F32)
    total.compute_at(output, x).reorder(c, x, y).bound(c, 0, 4).unroll(c)
    total.vectorize(x, F32)
    total.update(0).reorder(c, x, y, s.x, s.y).unroll(c).vectorize(x, F32)
    blur_d.compute_at(total, x).vectorize(x, F32)
    return output


def images(rng: Any, width: int, height: int) -> tuple[Any, ...]:
    """Three planes of floats."""
    return (rng.random((3, height, width), dtype=np.float32),)


APP = App(
    build,
    images,
    lambda width, height: ((0, width), (0, height), (0, 3)),
    size=(768, 640),
    small=(32, 24),
    tolerance=1e-4,
)
