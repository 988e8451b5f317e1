"""Local Laplacian filters (Paris et al.), as in Halide's apps: pyramids, some 100 Funcs."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import pytest

from tilewright import halide as hl

x, y, k = hl.Var("x"), hl.Var("y"), hl.Var("k")


def downsample(f, name, rest):
    across, down = hl.Func(f"{name}_dx"), hl.Func(f"{name}_dy")
    across[(x, y, *rest)] = (
        f[(2 * x - 1, y, *rest)]
        + 3.0 * (f[(2 * x, y, *rest)] + f[(2 * x + 1, y, *rest)])
        + f[(2 * x + 2, y, *rest)]
    ) / 8.0
    down[(x, y, *rest)] = (
        across[(x, 2 * y - 1, *rest)]
        + 3.0 * (across[(x, 2 * y, *rest)] + across[(x, 2 * y + 1, *rest)])
        + across[(x, 2 * y + 2, *rest)]
    ) / 8.0
    return down


def upsample(f, name, rest):
    across, down = hl.Func(f"{name}_ux"), hl.Func(f"{name}_uy")
    across[(x, y, *rest)] = (
        0.25 * f[(x // 2 - 1 + 2 * (x % 2), y, *rest)] + 0.75 * f[(x // 2, y, *rest)]
    )
    down[(x, y, *rest)] = (
        0.25 * across[(x, y // 2 - 1 + 2 * (y % 2), *rest)]
        + 0.75 * across[(x, y // 2, *rest)]
    )
    return down


def local_laplacian(image, pyramid_levels, intensities, alpha, beta):
    """The output Func, and every Func that is stored (the others are computed inline)."""
    clamped = hl.BoundaryConditions.repeat_edge(image)
    gray = hl.Func("gray")
    gray[x, y] = hl.f32(clamped[x, y]) / 65535.0

    def remapped(value, level):
        offset = value * (intensities - 1.0) - level
        return alpha * offset * hl.exp(-offset * offset / 2.0)

    first = hl.Func("g0")
    level = hl.f32(k) / (intensities - 1.0)
    first[x, y, k] = (
        beta * (gray[x, y] - level) + level + remapped(gray[x, y], hl.f32(k))
    )
    g, into = [first], [gray]
    for j in range(1, pyramid_levels):
        g.append(downsample(g[-1], f"g{j}", (k,)))
        into.append(downsample(into[-1], f"in{j}", ()))
    detail = []
    for j in range(pyramid_levels):
        d = hl.Func(f"l{j}")
        if j == pyramid_levels - 1:
            d[x, y, k] = g[j][x, y, k]
        else:
            d[x, y, k] = g[j][x, y, k] - upsample(g[j + 1], f"l{j}", (k,))[x, y, k]
        detail.append(d)
    out = None
    stored = [*g, *into]
    for j in reversed(range(pyramid_levels)):
        chosen = hl.Func(f"outl{j}")
        value = into[j][x, y] * (intensities - 1.0)
        low = hl.clamp(hl.i32(value), 0, intensities - 2)
        rest = value - hl.f32(low)
        chosen[x, y] = (1.0 - rest) * detail[j][x, y, low] + rest * detail[j][
            x, y, low + 1
        ]
        merged = hl.Func(f"outg{j}")
        coarse = 0.0 if out is None else upsample(out, f"outg{j}", ())[x, y]
        merged[x, y] = chosen[x, y] + coarse
        stored.append(merged)
        out = merged
    result = hl.Func("local_laplacian")
    result[x, y] = hl.u16(hl.clamp(out[x, y], 0.0, 1.0) * 65535.0)
    return result, stored


# -- the same in NumPy, each level over a region wide enough


@dataclass
class Grid:
    """Values at coordinates `origin ..` of both axes."""

    values: np.ndarray
    origin: tuple[int, int]

    def at(self, ys, xs):
        return self.values[np.ix_(ys - self.origin[0], xs - self.origin[1])]

    @property
    def ends(self):
        return [(o, o + n) for o, n in zip(self.origin, self.values.shape[:2])]


def shrunk(f):
    (y0, y1), (x0, x1) = f.ends
    ys, xs = (
        np.arange((y0 + 2) // 2, (y1 - 2) // 2),
        np.arange((x0 + 2) // 2, (x1 - 2) // 2),
    )
    rows = np.arange(y0, y1)
    a = Grid(
        (
            f.at(rows, 2 * xs - 1)
            + 3 * (f.at(rows, 2 * xs) + f.at(rows, 2 * xs + 1))
            + f.at(rows, 2 * xs + 2)
        )
        / 8,
        (y0, xs[0]),
    )
    b = (
        a.at(2 * ys - 1, xs)
        + 3 * (a.at(2 * ys, xs) + a.at(2 * ys + 1, xs))
        + a.at(2 * ys + 2, xs)
    ) / 8
    return Grid(b, (ys[0], xs[0]))


def grown(f, like):
    (y0, y1), (x0, x1) = like.ends
    (fy0, fy1), (fx0, fx1) = f.ends
    ys = np.arange(max(y0, 2 * fy0 + 2), min(y1, 2 * fy1 - 2))
    xs = np.arange(max(x0, 2 * fx0 + 2), min(x1, 2 * fx1 - 2))
    rows = np.arange(fy0, fy1)
    a = Grid(
        0.25 * f.at(rows, xs // 2 - 1 + 2 * (xs % 2)) + 0.75 * f.at(rows, xs // 2),
        (fy0, xs[0]),
    )
    b = 0.25 * a.at(ys // 2 - 1 + 2 * (ys % 2), xs) + 0.75 * a.at(ys // 2, xs)
    return Grid(b, (ys[0], xs[0]))


def plus(a, b, sign=1.0):
    """`a + sign*b` where both are known."""
    ys = np.arange(*(f(p, q) for f, p, q in zip((max, min), a.ends[0], b.ends[0])))
    xs = np.arange(*(f(p, q) for f, p, q in zip((max, min), a.ends[1], b.ends[1])))
    return Grid(a.at(ys, xs) + sign * b.at(ys, xs), (ys[0], xs[0]))


def reference(image, pyramid_levels, intensities, alpha, beta):
    margin = 3 << pyramid_levels
    gray = Grid(np.pad(image / 65535.0, margin, mode="edge"), (-margin, -margin))
    steps = np.arange(intensities)
    offset = gray.values[..., None] * (intensities - 1) - steps
    level = steps / (intensities - 1)
    first = beta * (gray.values[..., None] - level) + level
    g = [Grid(first + alpha * offset * np.exp(-offset * offset / 2), gray.origin)]
    into = [gray]
    for _ in range(1, pyramid_levels):
        g.append(shrunk(g[-1]))
        into.append(shrunk(into[-1]))
    out = None
    for j in reversed(range(pyramid_levels)):
        detail = g[j] if out is None else plus(g[j], grown(g[j + 1], g[j]), -1.0)
        (y0, y1), (x0, x1) = detail.ends
        value = into[j].at(np.arange(y0, y1), np.arange(x0, x1)) * (intensities - 1)
        low = np.clip(value.astype(int), 0, intensities - 2)
        rest = value - low
        pick = np.take_along_axis
        chosen = (1 - rest) * pick(detail.values, low[..., None], 2)[..., 0]
        chosen = Grid(
            chosen + rest * pick(detail.values, low[..., None] + 1, 2)[..., 0], (y0, x0)
        )
        out = chosen if out is None else plus(chosen, grown(out, chosen))
    height, width = image.shape
    final = out.at(np.arange(height), np.arange(width))
    return (np.clip(final, 0, 1) * 65535).astype(np.uint16)


def run(width, height, pyramid_levels, intensities, root_only):
    image = (
        np.random.default_rng(0).integers(0, 65536, (height, width)).astype(np.uint16)
    )
    image[: height // 2, : width // 3] //= 4
    f, stored = local_laplacian(hl.Buffer(image), pyramid_levels, intensities, 0.5, 0.9)
    for g in () if root_only is None else stored:
        g.compute_root()
        if not root_only:
            g.vectorize(x, 8).parallel(y)
    start = time.perf_counter()
    function = f.compile_jit([width, height])
    seconds = time.perf_counter() - start
    out = np.zeros((height, width), np.uint16)
    function(image, out)
    want = reference(image, pyramid_levels, intensities, 0.5, 0.9)
    difference = np.abs(out.astype(int) - want.astype(int))
    assert difference.max() <= 2, (difference.max(), np.argwhere(difference > 2)[:5])
    return len(f.regions([width, height]).funcs), seconds


@pytest.mark.parametrize("root_only", [True, False], ids=["root", "vectors"])
def test_three_levels(root_only):
    funcs, _ = run(40, 28, 3, 4, root_only)
    assert funcs > 20


@pytest.mark.slow
def test_eight_levels(capsys):
    funcs, seconds = run(192, 128, 8, 8, False)
    assert funcs > 70
    with capsys.disabled():
        print(
            f"local Laplacian: {funcs} Funcs, scheduled and compiled in {seconds:.1f} s"
        )
