"""blur: a 3x3 box filter of 16-bit pixels, its rows in a circular buffer."""

from __future__ import annotations

from typing import Any

import numpy as np

from examples.halide_apps.app import App


def build(hl: Any, image: Any) -> Any:
    """The blurred image."""
    x, y, yi = hl.Var("x"), hl.Var("y"), hl.Var("yi")
    blur_x, blur_y = hl.Func("blur_x"), hl.Func("blur_y")
    blur_x[x, y] = (image[x, y] + image[x + 1, y] + image[x + 2, y]) // 3
    blur_y[x, y] = (blur_x[x, y] + blur_x[x, y + 1] + blur_x[x, y + 2]) // 3

    blur_y.split(y, y, yi, 32).parallel(y).vectorize(x, 16)
    blur_x.store_at(blur_y, y).compute_at(blur_y, x).vectorize(x, 16)
    return blur_y


def images(rng: Any, width: int, height: int) -> tuple[Any, ...]:
    """Pixels, and two rows and columns more than the output has."""
    return (rng.integers(0, 4096, (height + 2, width + 2)).astype(np.uint16),)


APP = App(
    build,
    images,
    lambda width, height: ((0, width), (0, height)),
    size=(6400, 4800),
    small=(160, 64),
)
