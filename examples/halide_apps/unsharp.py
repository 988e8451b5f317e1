"""unsharp: sharpening by the difference from a Gaussian blur, with repeated edges."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from examples.halide_apps.app import F32, App

SIGMA = 1.5


def build(hl: Any, image: Any) -> Any:
    """The sharpened image, three planes of floats."""
    x, y, c = hl.Var("x"), hl.Var("y"), hl.Var("c")
    yo, yi = hl.Var("yo"), hl.Var("yi")
    kernel = [
        math.exp(-n * n / (2 * SIGMA * SIGMA)) / (math.sqrt(2 * math.pi) * SIGMA)
        for n in range(4)
    ]
    bounded = hl.BoundaryConditions.repeat_edge(image)

    def weighted(at: Any) -> Any:
        value = kernel[0] * at(0)
        for n in range(1, 4):
            value += kernel[n] * (at(-n) + at(n))
        return value

    gray, blur_y, blur_x = hl.Func("gray"), hl.Func("blur_y"), hl.Func("blur_x")
    gray[x, y] = (
        hl.f32(0.299) * bounded[x, y, 0]
        + hl.f32(0.587) * bounded[x, y, 1]
        + hl.f32(0.114) * bounded[x, y, 2]
    )
    blur_y[x, y] = weighted(lambda n: gray[x, y + n])
    blur_x[x, y] = weighted(lambda n: blur_y[x + n, y])
    sharpen, ratio, output = hl.Func("sharpen"), hl.Func("ratio"), hl.Func("output")
    sharpen[x, y] = 2.0 * gray[x, y] - blur_x[x, y]
    ratio[x, y] = sharpen[x, y] / gray[x, y]
    output[x, y, c] = ratio[x, y] * image[x, y, c]

    output.split(y, yo, yi, 32).vectorize(x, F32).parallel(yo).reorder(x, c, yi, yo)
    for f in (gray, blur_y, ratio):
        f.compute_at(output, yi).store_at(output, yo).vectorize(x, F32)
    return output


def images(rng: Any, width: int, height: int) -> tuple[Any, ...]:
    """Three planes without black pixels, by which the ratio would divide."""
    return (rng.uniform(0.1, 1, (3, height, width)).astype(np.float32),)


APP = App(
    build,
    images,
    lambda width, height: ((0, width), (0, height), (0, 3)),
    size=(1536, 2560),
    small=(48, 40),
    tolerance=1e-5,
)
