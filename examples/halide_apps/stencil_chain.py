"""stencil_chain: 32 stencils of 5x5 in a row, in groups of 11 that keep only rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from examples.halide_apps.app import U16, App

STENCILS, GROUP = 32, 11
TILES = 4  # along x and along y


def chain(hl: Any, image: Any, stencils: int, width: int, height: int) -> Any:
    """The output of so many stencils, scheduled for an image of this size."""
    x, y, xo, yo, xi, yi, t = (
        hl.Var(n) for n in ("x", "y", "xo", "yo", "xi", "yi", "t")
    )
    stages = [hl.BoundaryConditions.repeat_edge(image)]
    for s in range(stencils):
        before, stage = stages[-1], hl.Func(f"stage_{s}")
        value = hl.u16(0)
        for i in range(-2, 3):
            for j in range(-2, 3):
                value += hl.u16((i + 3) * (j + 3)) * before[x + i, y + j]
        stage[x, y] = value
        stages.append(stage)
    output = hl.Func("output")
    output[x, y] = stages[-1][x, y]

    last = len(stages) - 1
    for j in range(last, 0, -GROUP):
        out = output if j == last else stages[j]
        more = 4 * (last - j)
        across, down = (width + more) // TILES, (height + more) // TILES
        out.compute_root().tile(x, y, xo, yo, xi, yi, across, down).fuse(xo, yo, t)
        out.parallel(t).vectorize(xi, U16)
        for stage in stages[max(1, j - GROUP + 1) : j]:
            stage.store_at(out, t).compute_at(out, yi).vectorize(x, U16)
    return output


def build(hl: Any, image: Any) -> Any:
    """The output of the chain."""
    return chain(hl, image, STENCILS, *APP.size)


def images(rng: Any, width: int, height: int) -> tuple[Any, ...]:
    """Pixels of 16 bits; the sums wrap."""
    return (rng.integers(0, 1 << 16, (height, width)).astype(np.uint16),)


APP = App(
    build,
    images,
    lambda width, height: ((0, width), (0, height)),
    size=(1536, 2560),
    small=(384, 640),
)
