"""lens_blur: depth from a stereo pair, then a bokeh of that depth by samples of the aperture.

Where Halide draws the samples with `random_float`, this is a hash of the place and the sample.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from examples.halide_apps.app import App

SLICES, FOCUS, SAMPLES = 32, 13, 32
SCALE = 0.5  # radius of the blur per slice out of focus
LEVELS = 8
RADIUS = int(max(SLICES - FOCUS, FOCUS) * SCALE)


def square(e: Any) -> Any:
    """The square of an expression."""
    return e * e


def noise(hl: Any, x: Any, y: Any, s: Any, which: int) -> Any:
    """A number in 0..1 that looks random."""
    seed = hl.u32(x) * hl.u32(73856093) ^ hl.u32(y) * hl.u32(19349663)
    seed = (seed ^ hl.u32(s) * hl.u32(83492791) ^ hl.u32(which)) * hl.u32(2654435761)
    seed = (seed ^ (seed >> hl.u32(15))) * hl.u32(2246822519)
    return hl.f32(hl.i32(seed >> hl.u32(8))) * hl.f32(1.0 / (1 << 24))


class Pyramid:
    """Resampling along x and y, on the Vars x, y, z, c."""

    def __init__(self, hl: Any, variables: tuple[Any, ...]) -> None:
        self.hl, self.vars = hl, variables

    def down(self, f: Any) -> Any:
        """Half the size, by the filter 1 3 3 1."""
        x, y, z, c = self.vars
        three, eight = self.hl.f32(3.0), self.hl.f32(8.0)
        across, both = self.hl.Func(), self.hl.Func()
        across[x, y, z, c] = (
            f[2 * x - 1, y, z, c]
            + three * (f[2 * x, y, z, c] + f[2 * x + 1, y, z, c])
            + f[2 * x + 2, y, z, c]
        ) / eight
        both[x, y, z, c] = (
            across[x, 2 * y - 1, z, c]
            + three * (across[x, 2 * y, z, c] + across[x, 2 * y + 1, z, c])
            + across[x, 2 * y + 2, z, c]
        ) / eight
        return both

    def up(self, f: Any) -> Any:
        """Twice the size, by linear interpolation."""
        x, y, z, c = self.vars
        near, far = self.hl.f32(0.75), self.hl.f32(0.25)
        across, both = self.hl.Func(), self.hl.Func()
        across[x, y, z, c] = (
            far * f[x // 2 - 1 + 2 * (x % 2), y, z, c] + near * f[x // 2, y, z, c]
        )
        both[x, y, z, c] = (
            far * across[x, y // 2 - 1 + 2 * (y % 2), z, c]
            + near * across[x, y // 2, z, c]
        )
        return both


def build(hl: Any, left_image: Any, right_image: Any) -> Any:
    """The blurred left image, three planes of floats."""
    variables = tuple(hl.Var(n) for n in "xyzc")
    left = hl.BoundaryConditions.repeat_edge(left_image)
    right = hl.BoundaryConditions.repeat_edge(right_image)
    size = left_image.dim(0).extent(), left_image.dim(1).extent()
    depth = depth_of(hl, variables, left, right, size)
    return rendered(hl, variables, left, depth)


def depth_of(hl: Any, variables: Any, left: Any, right: Any, size: Any) -> Any:
    """The slice in which both images agree best, at each pixel."""
    x, y, z, c = variables
    diff, cost = hl.Func("diff"), hl.Func("cost")
    diff[x, y, z, c] = hl.min(
        hl.absd(left[x, y, c], right[x + 2 * z, y, c]),
        hl.absd(left[x, y, c], right[x + 2 * z + 1, y, c]),
    )
    cost[x, y, z] = (
        square(hl.f32(diff[x, y, z, 0]))
        + square(hl.f32(diff[x, y, z, 1]))
        + square(hl.f32(diff[x, y, z, 2]))
    )

    # The variance over the slices says how sure the cost is.
    confidence, r = hl.Func("cost_confidence"), hl.RDom([(0, SLICES)], "r")
    slices = hl.f32(SLICES)
    mean = hl.sum(cost[x, y, r.x] / slices)
    confidence[x, y] = hl.sum(square(cost[x, y, r.x])) / slices - square(mean)

    # Push and pull: places of low confidence take the cost of their surroundings.
    pyramid = Pyramid(hl, (x, y, z, c))
    push = [hl.Func(f"push_{n}") for n in range(LEVELS)]
    weighted = cost[x, y, z] * confidence[x, y]
    push[0][x, y, z, c] = hl.mux(c, [weighted, confidence[x, y]])
    width, height = size
    for n in range(1, LEVELS):
        push[n][x, y, z, c] = pyramid.down(push[n - 1])[x, y, z, c]
        width, height = width // 2, height // 2
        push[n] = hl.BoundaryConditions.repeat_edge(push[n], [(0, width), (0, height)])
    pull = [hl.Func(f"pull_{n}") for n in range(LEVELS)]
    pull[-1][x, y, z, c] = push[-1][x, y, z, c]
    for n in reversed(range(LEVELS - 1)):
        wide = pyramid.up(pull[n + 1])[x, y, z, c]
        pull[n][x, y, z, c] = hl.lerp(wide, push[n][x, y, z, c], hl.f32(0.5))
    filtered, depth = hl.Func("filtered_cost"), hl.Func("depth")
    filtered[x, y, z] = pull[0][x, y, z, 0] / pull[0][x, y, z, 1]
    rd = hl.RDom([(0, SLICES)], "rd")
    depth[x, y] = hl.argmin(filtered[x, y, rd.x])[0]

    push[0].compute_root().reorder(c, z, x, y).bound(c, 0, 2).unroll(c)
    push[0].vectorize(x, 16).parallel(y, 4)
    cost.compute_at(push[0], x).hoist_storage(push[0], y).vectorize(x)
    confidence.compute_at(push[0], x).vectorize(x)
    xi, yi, t = hl.Var("xi"), hl.Var("yi"), hl.Var("t")
    for n in range(1, LEVELS):
        push[n].compute_at(pull[1], t).vectorize(x, 8)
        if n > 1:
            pull[n].compute_at(pull[1], t)
            pull[n].tile(x, y, xi, yi, 8, 2).vectorize(xi).unroll(yi)
    pull[1].compute_root().fuse(z, c, t).parallel(t)
    pull[1].tile(x, y, xi, yi, 8, 2).vectorize(xi).unroll(yi)
    depth.compute_root().tile(x, y, xi, yi, 8, 2).vectorize(xi).unroll(yi)
    depth.parallel(y, 8)
    return depth


def rendered(hl: Any, variables: Any, left: Any, depth: Any) -> Any:
    """The image with a bokeh by its depth."""
    x, y, z, c = variables
    bokeh, bokeh_squared = hl.Func("bokeh_radius"), hl.Func("bokeh_radius_squared")
    bokeh[x, y] = hl.f32(hl.abs(depth[x, y] - FOCUS)) * hl.f32(SCALE)
    bokeh_squared[x, y] = square(bokeh[x, y])
    worst_y, worst = hl.Func("worst_case_bokeh_y"), hl.Func("worst_case_bokeh")
    rb = hl.RDom([(-RADIUS, 2 * RADIUS + 1)], "rb")
    worst_y[x, y] = hl.maximum(bokeh[x, y + rb.x])
    worst[x, y] = hl.maximum(worst_y[x + rb.x, y])

    with_alpha = hl.Func("input_with_alpha")
    planes = [hl.f32(left[x, y, n]) for n in range(3)]
    with_alpha[x, y, c] = hl.mux(c, [*planes, hl.f32(255.0)])
    output, final = hl.Func("output"), hl.Func("final")
    output[x, y, c] = with_alpha[x, y, c]
    locations, weight = hl.Func("sample_locations"), hl.Func("sample_weight")

    def sample(which: int) -> Any:
        at = (noise(hl, x, y, z, which) - hl.f32(0.5)) * hl.f32(2.0) * worst[x, y]
        return hl.clamp(hl.i32(at), -RADIUS, RADIUS)

    locations[x, y, z] = (sample(0), sample(1))
    u, v = locations[x, y, z][0], locations[x, y, z][1]
    apart = hl.f32(u * u + v * v)
    within_this = apart < bokeh_squared[x, y]
    within_sample = apart < bokeh_squared[x + u, y + v]
    in_front = depth[x + u, y + v] < depth[x, y]
    seen = (within_this | in_front) & within_sample
    weight[x, y, z] = hl.select(seen, hl.f32(1.0), hl.f32(0.0))
    s = hl.RDom([(0, SAMPLES)], "s")
    there = x + locations[x, y, s.x][0], y + locations[x, y, s.x][1]
    output[x, y, c] += weight[x, y, s.x] * with_alpha[there[0], there[1], c]
    final[x, y, c] = output[x, y, c] / output[x, y, 3]

    with_alpha.compute_root().reorder(c, x, y).unroll(c).vectorize(x, 8).parallel(y, 8)
    worst_y.compute_at(final, y).vectorize(x, 8)
    final.compute_root().reorder(c, x, y).bound(c, 0, 3).unroll(c)
    final.vectorize(x, 8).parallel(y)
    worst.compute_at(final, y).vectorize(x, 8)
    output.compute_at(final, x).vectorize(x)
    output.update().reorder(c, x, s.x).vectorize(x).unroll(c)
    weight.compute_at(output, x).unroll(x)
    locations.compute_at(output, x).vectorize(x)
    return final


def images(rng: Any, width: int, height: int) -> tuple[Any, ...]:
    """A pair of images; the right one is shifted and noisy."""
    left = rng.integers(0, 256, (3, height, width)).astype(np.uint8)
    return left, np.roll(left, 5, axis=2)


APP = App(
    build,
    images,
    lambda width, height: ((0, width), (0, height), (0, 3)),
    size=(192, 320),
    small=(192, 128),
    tolerance=1e-4,
)
