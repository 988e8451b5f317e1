"""local_laplacian: tone mapping by pyramids of as many remapped images as there are intensities."""

from __future__ import annotations

from typing import Any

import numpy as np

from examples.halide_apps.app import App

LEVELS, INTENSITIES = 8, 8
ALPHA, BETA = 1.0 / 7, 1.0
LANES = 8


class Pyramid:
    """Resampling along x and y; further coordinates come along."""

    def __init__(self, hl: Any) -> None:
        self.hl, self.x, self.y = hl, hl.Var("x"), hl.Var("y")

    def down(self, f: Any, *rest: Any) -> tuple[Any, Any]:
        """Half the size by the filter 1 3 3 1, and the step that reads `f`."""
        x, y, three, eight = self.x, self.y, self.hl.f32(3.0), self.hl.f32(8.0)
        rows, both = self.hl.Func(), self.hl.Func()
        t = [f[(x, 2 * y + n, *rest)] for n in (-1, 0, 1, 2)]
        rows[(x, y, *rest)] = (t[0] + three * (t[1] + t[2]) + t[3]) / eight
        t = [rows[(2 * x + n, y, *rest)] for n in (-1, 0, 1, 2)]
        both[(x, y, *rest)] = (t[0] + three * (t[1] + t[2]) + t[3]) / eight
        return both, rows

    def up(self, f: Any, *rest: Any) -> Any:
        """Twice the size, by linear interpolation."""
        hl, x, y = self.hl, self.x, self.y
        across, both = hl.Func(), hl.Func()

        def weight(v: Any) -> Any:
            return hl.f32((v % 2) * 2 + 1) / hl.f32(4.0)

        left, right = (f[((x + n) // 2, y, *rest)] for n in (1, -1))
        across[(x, y, *rest)] = hl.lerp(left, right, weight(x))
        over, under = (across[(x, (y + n) // 2, *rest)] for n in (1, -1))
        both[(x, y, *rest)] = hl.lerp(over, under, weight(y))
        return both


def build(hl: Any, image: Any) -> Any:
    """The image with its details enhanced, three planes of 16-bit pixels."""
    pyramid = Pyramid(hl)
    x, y, c, k = pyramid.x, pyramid.y, hl.Var("c"), hl.Var("k")
    remap, gray = hl.Func("remap"), hl.Func("gray")
    fx = hl.f32(x) / hl.f32(256.0)
    remap[x] = hl.f32(ALPHA) * fx * hl.exp(-fx * fx / hl.f32(2.0))
    clamped = hl.BoundaryConditions.repeat_edge(image)
    weights = [hl.f32(w) for w in (0.299, 0.587, 0.114)]
    red, green, blue = (
        w * (hl.f32(clamped[x, y, n]) / hl.f32(65535.0)) for n, w in enumerate(weights)
    )
    gray[x, y] = red + green + blue

    # The remapped images, of which each level has one per intensity.
    steps = hl.f32(INTENSITIES - 1)
    level = hl.f32(k) * hl.f32(1.0 / (INTENSITIES - 1))
    index = hl.i32(gray[x, y] * steps * hl.f32(256.0))
    index = hl.clamp(index, 0, (INTENSITIES - 1) * 256)
    g, detail, inside = [hl.Func("gPyramid_0")], [], [gray]
    g[0][x, y, k] = hl.f32(BETA) * (gray[x, y] - level) + level + remap[index - 256 * k]
    first = None
    for n in range(1, LEVELS):
        g.append(hl.Func(f"gPyramid_{n}"))
        smaller, rows = pyramid.down(g[n - 1], k)
        g[n][x, y, k] = smaller[x, y, k]
        first = first or rows
        inside.append(hl.Func(f"inGPyramid_{n}"))
        inside[n][x, y] = pyramid.down(inside[n - 1])[0][x, y]
    for n in range(LEVELS):
        detail.append(hl.Func(f"lPyramid_{n}"))
        wide = pyramid.up(g[n + 1], k)[x, y, k] if n < LEVELS - 1 else None
        detail[n][x, y, k] = g[n][x, y, k] if wide is None else g[n][x, y, k] - wide

    # Each level of the output mixes the two images whose intensities are nearest.
    out = [hl.Func(f"outGPyramid_{n}") for n in range(LEVELS)]
    for n in reversed(range(LEVELS)):
        value = inside[n][x, y] * steps
        low = hl.clamp(hl.i32(value), 0, INTENSITIES - 2)
        rest = value - hl.f32(low)
        mixed = (hl.f32(1.0) - rest) * detail[n][x, y, low]
        mixed += rest * detail[n][x, y, low + 1]
        wide = pyramid.up(out[n + 1])[x, y] if n < LEVELS - 1 else None
        out[n][x, y] = mixed if wide is None else wide + mixed
    output, eps = hl.Func("output"), hl.f32(0.01)
    color = hl.f32(image[x, y, c]) * (out[0][x, y] + eps) / (gray[x, y] + eps)
    output[x, y, c] = hl.u16(hl.clamp(color, hl.f32(0.0), hl.f32(65535.0)))

    remap.compute_root()
    schedule(hl, pyramid, g[0].clone_in(first), (g, inside, out, output))
    return output


def schedule(hl: Any, pyramid: Pyramid, start: Any, funcs: tuple[Any, ...]) -> None:
    """Fine levels in strips of rows, those of the output as they are needed; coarse ones whole."""
    x, y, c, k, yo = pyramid.x, pyramid.y, hl.Var("c"), hl.Var("k"), hl.Var("yo")
    g, inside, out, output = funcs
    output.reorder(c, x, y).split(y, yo, y, 64).parallel(yo).vectorize(x, LANES)
    inside[0].compute_root().parallel(y, 32).vectorize(x, LANES)
    for n in range(1, 5):
        inside[n].compute_root().parallel(y, 32).vectorize(x, LANES)
        g[n].compute_root().reorder_storage(x, k, y).reorder(k, y)
        g[n].split(y, yo, y, 8).parallel(yo).vectorize(x, LANES)
        out[n].store_at(output, yo).compute_at(output, y).vectorize(x, LANES)
    start.store_at(g[1], yo).compute_at(g[1], y).vectorize(x, LANES)
    out[0].compute_at(output, y).vectorize(x, LANES)
    for n in range(5, LEVELS):
        inside[n].compute_root()
        g[n].compute_root().parallel(k)
        out[n].compute_root()


def images(rng: Any, width: int, height: int) -> tuple[Any, ...]:
    """Three planes of 16-bit pixels."""
    return (rng.integers(0, 65536, (3, height, width)).astype(np.uint16),)


APP = App(
    build,
    images,
    lambda width, height: ((0, width), (0, height), (0, 3)),
    size=(1536, 1280),
    small=(160, 128),
    tolerance=5e-3,  # a float rounded otherwise may take the next entry of the table
)
