"""camera_pipe: a raw image of a Bayer sensor is denoised, demosaicked, corrected and sharpened."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from examples.halide_apps.app import U16, App

COLOR_TEMPERATURE, GAMMA, CONTRAST, SHARPENING = 3700.0, 2.0, 50.0, 1.0
BLACK, WHITE = 25, 1023
STRIP = 32
LANES = 2 * U16


class Demosaic(NamedTuple):
    """The stages of `demosaic`: its output and the two that it keeps."""

    output: Any
    g_r: Any
    g_b: Any


def build(hl: Any, raw: Any, matrix_3200: Any, matrix_7000: Any) -> Any:
    """The image, three planes of bytes."""
    x, y, c = (hl.Var(n) for n in "xyc")
    shifted, denoised = hl.Func("shifted"), hl.Func("denoised")
    shifted[x, y] = raw[x + 16, y + 12]
    around = [shifted[x + dx, y + dy] for dx, dy in ((-2, 0), (2, 0), (0, -2), (0, 2))]
    most = hl.max(hl.max(around[0], around[1]), hl.max(around[2], around[3]))
    denoised[x, y] = hl.clamp(shifted[x, y], hl.u16(0), most)

    deinterleaved = hl.Func("deinterleaved")
    sites = [denoised[2 * x + dx, 2 * y + dy] for dy in (0, 1) for dx in (0, 1)]
    sites = [hl.cast(hl.UInt(16), e) for e in sites]
    deinterleaved[x, y, c] = hl.mux(c, sites)
    demosaiced = demosaic(hl, deinterleaved)
    corrected = correct(hl, demosaiced.output, matrix_3200, matrix_7000)
    curved = hl.Func("curved")
    curve = tone_curve(hl)
    curved[x, y, c] = curve[hl.clamp(hl.cast(hl.Int(32), corrected[x, y, c]), 0, 1023)]
    output = sharpen(hl, curved)
    schedule(hl, denoised, deinterleaved, demosaiced, corrected, curved, output)
    return output


def average(wide: Any, narrow: Any, a: Any, b: Any) -> Any:
    """Of two values, rounded up: a sum in one type, a result in another."""
    return narrow((wide(a) + wide(b) + wide(1)) // wide(2))


def demosaic(hl: Any, mosaic: Any) -> Demosaic:
    """All three colors at each site, of the one that the sensor has there.

    A name such as b_gr is blue at the green sites of red rows. What is unknown is interpolated in
    the direction in which it changes least, and corrected by how green changes there.
    """
    x, y, c = (hl.Var(n) for n in "xyc")
    known = [hl.Func(n) for n in ("g_gr", "r_r", "b_b", "g_gb")]
    for n, f in enumerate(known):
        f[x, y] = mosaic[x, y, n]
    g_gr, r_r, b_b, g_gb = known

    def avg(f: Any, a: tuple[int, int], b: tuple[int, int]) -> Any:
        return average(hl.u32, hl.u16, f[x + a[0], y + a[1]], f[x + b[0], y + b[1]])

    def change(f: Any, a: tuple[int, int], b: tuple[int, int]) -> Any:
        return hl.absd(f[x + a[0], y + a[1]], f[x + b[0], y + b[1]])

    here, left, right, over, under = (0, 0), (-1, 0), (1, 0), (0, -1), (0, 1)
    g_r, g_b = hl.Func("g_r"), hl.Func("g_b")
    g_r[x, y] = hl.select(
        change(g_gr, right, here) < change(g_gb, over, here),
        avg(g_gr, right, here),
        avg(g_gb, over, here),
    )
    g_b[x, y] = hl.select(
        change(g_gb, left, here) < change(g_gr, under, here),
        avg(g_gb, left, here),
        avg(g_gr, under, here),
    )

    def made(name: str, value: Any) -> Any:
        f = hl.Func(name)
        f[x, y] = value
        return f

    def corrected(green: Any, near: Any, color: Any, a: Any, b: Any) -> Any:
        return green[x, y] - avg(near, a, b) + avg(color, a, b)

    r_gr = made("r_gr", corrected(g_gr, g_r, r_r, here, left))
    b_gr = made("b_gr", corrected(g_gr, g_b, b_b, here, over))
    r_gb = made("r_gb", corrected(g_gb, g_r, r_r, here, under))
    b_gb = made("b_gb", corrected(g_gb, g_b, b_b, here, right))

    def diagonal(green: Any, near: Any, color: Any, one: Any, two: Any) -> Any:
        steeper = change(color, *one) < change(color, *two)
        first = corrected(green, near, color, *one)
        return hl.select(steeper, first, corrected(green, near, color, *two))

    r_b = made("r_b", diagonal(g_b, g_r, r_r, (here, (-1, 1)), (left, under)))
    b_r = made("b_r", diagonal(g_r, g_b, b_b, (here, (1, -1)), (right, over)))

    def interleaved(sites: list[Any]) -> Any:
        a, b, d, e = (hl.cast(hl.UInt(16), f[x // 2, y // 2]) for f in sites)
        even = hl.select(x % 2 == 0, a, b)
        return hl.select(y % 2 == 0, even, hl.select(x % 2 == 0, d, e))

    output = hl.Func("demosaiced")
    red = interleaved([r_gr, r_r, r_b, r_gb])
    green = interleaved([g_gr, g_r, g_b, g_gb])
    blue = interleaved([b_gr, b_r, b_b, b_gb])
    output[x, y, c] = hl.i16(hl.mux(c, [red, green, blue]))
    return Demosaic(output, g_r, g_b)


def correct(hl: Any, image: Any, matrix_3200: Any, matrix_7000: Any) -> Any:
    """Colors by a matrix between the two, which are for two temperatures of light."""
    x, y, c = (hl.Var(n) for n in "xyc")
    kelvin = 1.0 / COLOR_TEMPERATURE
    alpha = (kelvin - 1.0 / 3200) / (1.0 / 7000 - 1.0 / 3200)
    mixed = matrix_3200[x, y] * hl.f32(alpha) + matrix_7000[x, y] * hl.f32(1 - alpha)
    matrix, corrected = hl.Func("matrix"), hl.Func("corrected")
    matrix[x, y] = hl.i16(mixed * hl.f32(256.0))  # 8 bits behind the point
    matrix.compute_root()
    colors = [hl.cast(hl.Int(32), image[x, y, n]) for n in range(3)]
    rows = []
    for row in range(3):
        total = hl.cast(hl.Int(32), matrix[3, row])
        for n, color in enumerate(colors):
            total += hl.cast(hl.Int(32), matrix[n, row]) * color
        rows.append(hl.i16(total // 256))
    corrected[x, y, c] = hl.mux(c, rows)
    return corrected


def tone_curve(hl: Any) -> Any:
    """A table from raw brightness to bytes."""
    x = hl.Var("x")
    one = hl.f32(1.0)
    b = 2.0 - 2.0 ** (CONTRAST / 100.0)
    a, b = hl.f32(2.0 - 2.0 * b), hl.f32(b)
    scaled = hl.f32(x - BLACK) * hl.f32(1.0 / (WHITE - BLACK))
    g = hl.pow(hl.clamp(scaled, hl.f32(0.0), one), hl.f32(1.0 / GAMMA))
    rest = one - g
    upper = one - (a * rest * rest + b * rest)
    z = hl.select(g > hl.f32(0.5), upper, a * g * g + b * g)
    value = hl.clamp(z * hl.f32(255.0) + hl.f32(0.5), hl.f32(0.0), hl.f32(255.0))
    curve = hl.Func("curve")
    beyond = hl.select(x > WHITE, hl.u8(255), hl.u8(value))
    curve[x] = hl.select(x <= BLACK, hl.u8(0), beyond)
    curve.compute_root()
    return curve


def sharpen(hl: Any, image: Any) -> Any:
    """The image plus what a blur takes from it."""
    x, y, c = (hl.Var(n) for n in "xyc")

    def blur121(a: Any, b: Any, d: Any) -> Any:
        mean = average(hl.u16, hl.u8, a, d)
        return average(hl.u16, hl.u8, mean, b)

    down, blurred, output = (
        hl.Func("unsharp_y"),
        hl.Func("unsharp"),
        hl.Func("processed"),
    )
    down[x, y, c] = blur121(*(image[x, y + n, c] for n in (-1, 0, 1)))
    blurred[x, y, c] = blur121(*(down[x + n, y, c] for n in (-1, 0, 1)))
    mask = hl.cast(hl.Int(16), image[x, y, c]) - hl.cast(hl.Int(16), blurred[x, y, c])
    strength = hl.i16(int(SHARPENING * 32))
    output[x, y, c] = hl.u8_sat(
        hl.cast(hl.Int(16), image[x, y, c]) + mask * strength // hl.i16(32)
    )
    return output


def schedule(
    hl: Any,
    denoised: Any,
    deinterleaved: Any,
    demosaiced: Demosaic,
    corrected: Any,
    curved: Any,
    output: Any,
) -> None:
    """Strips of rows on all threads; in a strip, each stage slides down by two rows."""
    x, y, c = (hl.Var(n) for n in "xyc")
    xi, yo, yi, yii = (hl.Var(n) for n in ("xi", "yo", "yi", "yii"))
    output.bound(c, 0, 3).reorder(c, x, y).split(y, yi, yii, 2)
    output.split(yi, yo, yi, STRIP // 2).vectorize(x, LANES).unroll(c).parallel(yo)
    denoised.compute_at(output, yi).store_at(output, yo)
    denoised.tile(x, y, x, y, xi, yi, LANES, 2).vectorize(xi).unroll(yi)
    deinterleaved.compute_at(output, yi).store_at(output, yo)
    deinterleaved.reorder(c, x, y).vectorize(x, LANES).unroll(c)
    curved.compute_at(output, yi).store_at(output, yo).reorder(c, x, y)
    curved.tile(x, y, x, y, xi, yi, LANES, 2).vectorize(xi).unroll(yi).unroll(c)
    corrected.compute_at(curved, x).reorder(c, x, y).vectorize(x).unroll(c)
    for f in (demosaiced.g_r, demosaiced.g_b):
        f.compute_at(output, yi).store_at(output, yo).vectorize(x, LANES)
    demosaiced.output.compute_at(curved, x).vectorize(x).unroll(y)
    demosaiced.output.reorder(c, x, y).unroll(c)


def images(rng: Any, width: int, height: int) -> tuple[Any, ...]:
    """Raw pixels of 10 bits, 32 columns and 24 rows more than the output, and both matrices."""
    raw = rng.integers(0, 1024, (height + 24, width + 32)).astype(np.uint16)
    warm = [
        [1.6697, -0.2693, -0.4004, -42.4346],
        [-0.3576, 1.0615, 1.5949, -37.1158],
        [-0.2175, -1.8751, 6.9640, -26.6970],
    ]
    cold = [
        [2.2997, -0.4478, 0.1706, -39.0923],
        [-0.3826, 1.5906, -0.2080, -25.4311],
        [-0.0888, -0.7344, 2.2832, -20.0826],
    ]
    return raw, np.array(warm, np.float32), np.array(cold, np.float32)


APP = App(
    build,
    images,
    lambda width, height: ((0, width), (0, height), (0, 3)),
    size=(1536, 1024),
    small=(128, 64),
)
