"""wavelet_inverse: the rows that `wavelet` has taken apart, even and odd columns interleaved."""

from __future__ import annotations

from typing import Any

import numpy as np

from examples.halide_apps.app import F32, App
from examples.halide_apps.wavelet import FILTER


def build(hl: Any, image: Any) -> Any:
    """The rows."""
    x, y = hl.Var("x"), hl.Var("y")
    d0, d1, d2, d3 = (hl.f32(d) for d in FILTER)
    f = hl.BoundaryConditions.repeat_edge(image)
    low, high = f[x // 2, y, 0], f[x // 2, y, 1]
    next_low, next_high = f[x // 2 + 1, y, 0], f[x // 2 + 1, y, 1]
    even = d2 * low + d1 * high + d0 * next_low + d3 * next_high
    odd = d3 * low - d0 * high + d1 * next_low - d2 * next_high
    output = hl.Func("inverse_daubechies_x")
    output[x, y] = hl.select(x % 2 == 0, even, odd)
    output.vectorize(x, 2 * F32).parallel(y, 16)
    return output


def images(rng: Any, width: int, height: int) -> tuple[Any, ...]:
    """Two planes of floats, each as wide as half a row."""
    return (rng.random((2, height, width // 2), dtype=np.float32),)


APP = App(
    build,
    images,
    lambda width, height: ((0, width), (0, height)),
    size=(1536, 1280),
    small=(96, 32),
    tolerance=1e-5,
)
