"""hist: equalizes the histogram of an image's brightness.

A float is rounded otherwise where a product and a sum become one operation, which may move a pixel
by one bin: hence the tolerance, of bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from examples.halide_apps.app import F32, App


def build(hl: Any, image: Any) -> Any:
    """The equalized image, three planes of bytes."""
    x, y, c = (hl.Var(n) for n in "xyc")
    bright, cr, cb = hl.Func("Y"), hl.Func("Cr"), hl.Func("Cb")
    weights = (hl.f32(w) for w in (0.299, 0.587, 0.114))
    red, green, blue = (w * image[x, y, n] for n, w in enumerate(weights))
    bright[x, y] = red + green + blue
    middle = hl.f32(128)
    cr[x, y] = (image[x, y, 0] - bright[x, y]) * hl.f32(0.713) + middle
    cb[x, y] = (image[x, y, 2] - bright[x, y]) * hl.f32(0.564) + middle

    width, height = image.dim(0).extent(), image.dim(1).extent()
    rx, ry = hl.RDom([(0, width)], "rx"), hl.RDom([(0, height)], "ry")
    rows, counts, cdf = hl.Func("hist_rows"), hl.Func("hist"), hl.Func("cdf")
    rows[x, y] = 0
    rows[hl.i32(byte(hl, bright[rx, y])), y] += 1
    counts[x] = 0
    counts[x] += rows[x, ry]
    b = hl.RDom([(1, 255)], "b")
    cdf[x] = counts[0]
    cdf[b.x] = cdf[b.x - 1] + counts[b.x]

    equal, output = hl.Func("equalize"), hl.Func("output")
    bin = hl.i32(hl.u8(byte(hl, bright[x, y])))
    equal[x, y] = byte(hl, cdf[bin] * (hl.f32(255.0) / hl.f32(width * height)))
    cr_off, cb_off = cr[x, y] - middle, cb[x, y] - middle
    red = equal[x, y] + cr_off * hl.f32(1.4)
    green = equal[x, y] - hl.f32(0.343) * cb_off - hl.f32(0.711) * cr_off
    blue = equal[x, y] + hl.f32(1.765) * cb_off
    output[x, y, c] = hl.mux(c, [hl.u8(byte(hl, e)) for e in (red, green, blue)])

    cdf.bound(x, 0, 256)
    bright.clone_in(rows).compute_at(rows.in_(), y).vectorize(x, F32)
    rows.in_().compute_root().vectorize(x, F32).parallel(y, 4)
    rows.compute_at(rows.in_(), y).vectorize(x, F32).update().reorder(y, rx).unroll(y)
    counts.compute_root().vectorize(x, F32)
    counts.update().reorder(x, ry).vectorize(x, F32).unroll(x, 4).parallel(x)
    counts.update().reorder(ry, x)
    cdf.compute_root()
    output.reorder(c, x, y).bound(c, 0, 3).unroll(c).parallel(y, 8)
    output.vectorize(x, 2 * F32)
    return output


def byte(hl: Any, e: Any) -> Any:
    """A float clamped to what a byte can hold."""
    return hl.clamp(e, hl.f32(0), hl.f32(255))


def images(rng: Any, width: int, height: int) -> tuple[Any, ...]:
    """Three planes of bytes."""
    return (rng.integers(0, 256, (3, height, width)).astype(np.uint8),)


APP = App(
    build,
    images,
    lambda width, height: ((0, width), (0, height), (0, 3)),
    size=(1536, 2560),
    small=(96, 64),
    tolerance=2 / 255,
)
