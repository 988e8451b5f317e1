"""fft_real: two-dimensional Fourier transforms of real numbers, of which half a spectrum is made.

Two columns are one column of complex numbers, whose transform is parted by its symmetry; so are the
first row and the middle one, which are real after that. The result has n/2 + 1 rows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from examples.halide_apps.app import F32, App
from examples.halide_apps.fft import Fourier, transposed


def build(hl: Any, image: Any) -> Any:
    """The transforms of a batch of square images."""
    n = image.get().width()
    half, wide = n // 2, math.gcd(F32, n // 2)
    x, y, c, b, xo, xi = (hl.Var(v) for v in ("n0", "n1", "c", "b", "xo", "xi"))
    fourier = Fourier(hl, -1)

    # Columns: those of even groups are real parts, those of odd groups imaginary.
    zipped, start = hl.Func("zipped"), (x // wide) * (2 * wide) + x % wide
    zipped[x, y, b] = (image[start, y, b], image[start + wide, y, b])
    columns = fourier.lines(zipped, n, wide, "columns")
    unzipped, at = hl.Func("unzipped"), (x // (2 * wide)) * wide + x % wide
    here = fourier.at(columns, at, y, b)
    there = fourier.at(columns, at, (n - y) % n, b).conjugate()
    one, other = here + there, (here - there).turned(-1)
    first = x % (2 * wide) < wide
    scale = hl.f32(0.5)
    unzipped[x, y, b] = (
        scale * hl.select(first, one.re, other.re),
        scale * hl.select(first, one.im, other.im),
    )

    # Rows: the first and the middle one are real.
    packed = hl.Func("packed")
    value = fourier.at(unzipped, x, y, b)
    top, middle = unzipped[x, 0, b][0], unzipped[x, half, b][0]
    packed[x, y, b] = (
        hl.select(y > 0, value.re, top),
        hl.select(y > 0, value.im, middle),
    )
    turned = transposed(hl, packed, wide)
    rows = fourier.lines(turned, n, wide, "rows")
    back = transposed(hl, rows, wide)
    spectrum = hl.Func("spectrum")
    spectrum[x, y, b] = back[x, y % half, b]
    here = fourier.at(back, x, 0, b)
    there = fourier.at(back, (n - x) % n, 0, b).conjugate()
    for row, found in ((half, (here - there).turned(-1)), (0, here + there)):
        spectrum[x, row, b] = (scale * found.re, scale * found.im)

    output = hl.Func("output")
    output[x, y, c, b] = hl.mux(c, [spectrum[x, y, b][0], spectrum[x, y, b][1]])
    output.bound(x, 0, n).bound(y, 0, half + 1).bound(c, 0, 2)
    output.reorder(c, x, y, b).unroll(c).vectorize(x, min(n, F32)).parallel(b)
    for stage in (columns, unzipped, packed, turned, rows, back, spectrum):
        stage.compute_at(output, b)
    unzipped.split(x, xo, xi, 2 * wide).vectorize(xi, wide).unroll(xi)
    packed.vectorize(x, F32)
    spectrum.vectorize(x, F32)
    for k in range(2):
        spectrum.update(k).vectorize(x, F32)
    return output


def images(rng: Any, n: int, batch: int) -> tuple[Any, ...]:
    """Random numbers."""
    return (rng.standard_normal((batch, n, n), dtype=np.float32),)


APP = App(
    build,
    images,
    lambda n, batch: ((0, n), (0, n // 2 + 1), (0, 2), (0, batch)),
    size=(32, 256),
    small=(16, 3),
    tolerance=1e-5,
)
