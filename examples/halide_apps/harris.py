"""harris: the corner detector, its gradients computed in one nest."""

from __future__ import annotations

from typing import Any

import numpy as np

from examples.halide_apps.app import F32, App


def sum3x3(f: Any, x: Any, y: Any) -> Any:
    """The sum of a Func over 3x3 neighbors."""
    total = f[x - 1, y - 1]
    for dx, dy in ((-1, 0), (-1, 1), (0, -1), (0, 0), (0, 1), (1, -1), (1, 0), (1, 1)):
        total = total + f[x + dx, y + dy]
    return total


def build(hl: Any, image: Any) -> Any:
    """The corner response of an image of three planes."""
    x, y, yi = hl.Var("x"), hl.Var("y"), hl.Var("yi")
    gray, ix, iy = hl.Func("gray"), hl.Func("Ix"), hl.Func("Iy")
    gray[x, y] = (
        hl.f32(0.299) * image[x, y, 0]
        + hl.f32(0.587) * image[x, y, 1]
        + hl.f32(0.114) * image[x, y, 2]
    )
    one, two = hl.f32(1 / 12), hl.f32(2 / 12)
    iy[x, y] = (
        gray[x - 1, y - 1] * -one
        + gray[x - 1, y + 1] * one
        + gray[x, y - 1] * -two
        + gray[x, y + 1] * two
        + gray[x + 1, y - 1] * -one
        + gray[x + 1, y + 1] * one
    )
    ix[x, y] = (
        gray[x - 1, y - 1] * -one
        + gray[x + 1, y - 1] * one
        + gray[x - 1, y] * -two
        + gray[x + 1, y] * two
        + gray[x - 1, y + 1] * -one
        + gray[x + 1, y + 1] * one
    )
    ixx, iyy, ixy = hl.Func("Ixx"), hl.Func("Iyy"), hl.Func("Ixy")
    ixx[x, y] = ix[x, y] * ix[x, y]
    iyy[x, y] = iy[x, y] * iy[x, y]
    ixy[x, y] = ix[x, y] * iy[x, y]
    sxx, syy, sxy = hl.Func("Sxx"), hl.Func("Syy"), hl.Func("Sxy")
    sxx[x, y] = sum3x3(ixx, x, y)
    syy[x, y] = sum3x3(iyy, x, y)
    sxy[x, y] = sum3x3(ixy, x, y)
    det, trace, output = hl.Func("det"), hl.Func("trace"), hl.Func("output")
    det[x, y] = sxx[x, y] * syy[x, y] - sxy[x, y] * sxy[x, y]
    trace[x, y] = sxx[x, y] + syy[x, y]
    output[x, y] = det[x, y] - hl.f32(0.04) * trace[x, y] * trace[x, y]

    output.split(y, y, yi, 32).parallel(y).vectorize(x, F32)
    for f in (gray, ix, iy):
        f.store_at(output, y).compute_at(output, yi).vectorize(x, F32)
    ix.compute_with(iy, x)
    return output


def images(rng: Any, width: int, height: int) -> tuple[Any, ...]:
    """Three planes of floats."""
    return (rng.random((3, height, width), dtype=np.float32),)


APP = App(
    build,
    images,
    lambda width, height: ((3, width - 6), (3, height - 6)),
    size=(1536, 2560),
    small=(70, 48),
    tolerance=1e-5,
)
