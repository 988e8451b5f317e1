"""hist_rfactor: a histogram whose rows are counted in parallel, by `rfactor`."""

from __future__ import annotations

from typing import Any

import numpy as np

from examples.halide_apps.app import App

STRIP = 32  # rows that are counted together


def build(hl: Any, image: Any) -> Any:
    """How often each byte occurs."""
    x, u = hl.Var("x"), hl.Var("u")
    outer, inner = hl.RVar("outer"), hl.RVar("inner")
    r = hl.RDom([(0, image.width()), (0, image.height())], "r")
    counts, output = hl.Func("counts"), hl.Func("output")
    counts[x] = 0
    counts[hl.i32(image[r.x, r.y])] += 1
    output[x] = counts[x]

    counts.update().split(r.y, outer, inner, STRIP)
    strips = counts.update().rfactor(outer, u)
    strips.compute_root().vectorize(x, 16).parallel(u).update().parallel(u)
    counts.compute_root().vectorize(x, 16)
    counts.update().vectorize(x, 16)
    output.bound(x, 0, 256).vectorize(x, 16)
    return output


def images(rng: Any, width: int, height: int) -> tuple[Any, ...]:
    """An image of bytes."""
    return (rng.integers(0, 256, (height, width)).astype(np.uint8),)


APP = App(
    build,
    images,
    lambda width, height: ((0, 256),),
    size=(1536, 2560),
    small=(64, 96),
)
