"""gemm: the general matrix product of apps/linear_algebra, a * A B + b * C, A in panels."""

from __future__ import annotations

from typing import Any

import numpy as np

from examples.halide_apps.app import F32, App

SCALE_AB, SCALE_C = 2.0, 0.5
PANEL = 2 * F32


def build(hl: Any, left: Any, right: Any, other: Any) -> Any:
    """The result; matrices are column-major, as in BLAS."""
    i, j, ii, ji = (hl.Var(n) for n in ("i", "j", "ii", "ji"))
    io, jo, t, k = (hl.Var(n) for n in ("io", "jo", "t", "k"))
    ti, tj = [hl.Var("ti0"), hl.Var("ti1")], [hl.Var("tj0"), hl.Var("tj1")]
    rows, columns, depth = left.width(), right.height(), left.height()

    # A in panels, in the order in which the inner loop reads it.
    padded, panels, a = hl.Func("Atmp"), hl.Func("As"), hl.Func("A")
    zero = hl.f32(0)
    padded[i, j] = hl.BoundaryConditions.constant_exterior(left, zero)[i, j]
    panels[i, j, io] = padded[io * PANEL + i, j]
    a[i, j] = panels[i % PANEL, j, i // PANEL]
    prod, ab, result = hl.Func("prod"), hl.Func("AB"), hl.Func("result")
    prod[k, i, j] = a[i, k] * right[k, j]
    rv = hl.RDom([(0, depth)], "rv")
    ab[i, j] += prod[rv.x, i, j]
    result[i, j] = hl.f32(SCALE_AB) * ab[i, j] + hl.f32(SCALE_C) * other[i, j]

    guard = hl.TailStrategy.GuardWithIf
    result.tile(i, j, ti[1], tj[1], i, j, 2 * PANEL, 2 * PANEL, tail=guard)
    result.tile(i, j, ii, ji, PANEL, 4)
    result.tile(i, j, ti[0], tj[0], i, j, 1, PANEL // 4)
    result.fuse(tj[1], ti[1], t).parallel(t)
    result.bound(i, 0, rows).bound(j, 0, columns)
    panels.compute_root().split(j, jo, ji, PANEL).reorder(i, ji, io, jo)
    panels.unroll(i).vectorize(ji).parallel(jo, 4)
    padded.compute_at(panels, io).vectorize(i).unroll(j)
    ab.compute_at(result, i).bound_extent(j, 4).unroll(j)
    ab.bound_extent(i, PANEL).vectorize(i)
    ab.update().reorder(i, j, rv.x).unroll(j).unroll(rv.x, 2).vectorize(i)
    return result


def images(rng: Any, size: int) -> tuple[Any, ...]:
    """Three square matrices."""
    shape = (size, size)
    return tuple(rng.standard_normal(shape).astype(np.float32) for _ in range(3))


APP = App(
    build,
    images,
    lambda size: ((0, size), (0, size)),
    size=(1024,),
    small=(128,),
    tolerance=1e-5,
)
