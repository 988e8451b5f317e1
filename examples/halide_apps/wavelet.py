"""wavelet: a level of Daubechies' transform along x, its low and high half as planes.

The app's generators unroll the two planes (or the even and odd columns); here the rows are vectors
on all threads, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from examples.halide_apps.app import F32, App

FILTER = (
    0.4829629131445341,
    0.8365163037378077,
    0.2241438680420134,
    -0.1294095225512603,
)


def build(hl: Any, image: Any) -> Any:
    """Both halves of each row."""
    x, y, c = (hl.Var(n) for n in "xyc")
    d0, d1, d2, d3 = (hl.f32(d) for d in FILTER)
    f = hl.BoundaryConditions.repeat_edge(image)
    t0, t1, t2, t3 = (f[2 * x + n, y] for n in (-1, 0, 1, 2))
    low = d0 * t0 + d1 * t1 + d2 * t2 + d3 * t3
    high = d3 * t0 - d2 * t1 + d1 * t2 - d0 * t3
    output = hl.Func("daubechies_x")
    output[x, y, c] = hl.mux(c, [low, high])
    output.bound(c, 0, 2).reorder(c, x, y).unroll(c).vectorize(x, F32).parallel(y, 16)
    return output


def images(rng: Any, width: int, height: int) -> tuple[Any, ...]:
    """One plane of floats."""
    return (rng.random((height, width), dtype=np.float32),)


APP = App(
    build,
    images,
    lambda width, height: ((0, width // 2), (0, height), (0, 2)),
    size=(1536, 1280),
    small=(96, 32),
    tolerance=1e-5,
)
