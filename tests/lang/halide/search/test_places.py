"""Every place of every Func, where it is legal, gives what the interpreter says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from tilewright import halide as hl
from tilewright.base.errors import ScheduleError
from tilewright.lang.halide.search import scheduled
from tilewright.lang.halide.search.copies import program
from tilewright.loops import interp
from tilewright.loops.verify import verify
from tilewright.tune.features.facts import Facts
from tilewright.tune.stages.beam import Found, options
from tilewright.tune.stages.bodies import Bodies
from tilewright.tune.stages.costs import StageCosts
from tilewright.tune.stages.places import Place, StagePlaces
from tilewright.tune.stages.price import Priced, Prices

IMAGE = np.random.default_rng(0).random((40, 60), np.float32)
# Vectors of four floats: small images have whole and partial ones.
COSTS = StageCosts(Facts(vector=16))
x, y, z = hl.vars("x y z")
Region = list[tuple[int, int]]


def image() -> hl.Buffer:
    return hl.Buffer(IMAGE, name="image")


def blur() -> tuple[hl.Func, Region]:
    rows, both, out = hl.funcs("rows both out")
    rows[x, y] = image()[x, y] + image()[x + 1, y] * 2.0
    both[x, y] = rows[x, y] + rows[x, y + 1] + rows[x, y + 2]
    out[x, y] = both[x, y] * rows[x, y + 1]
    return out, [(3, 13), (2, 7)]


def pyramid() -> tuple[hl.Func, Region]:
    down, up, out = hl.funcs("down up out")
    down[x, y] = image()[2 * x, 2 * y] + image()[2 * x + 1, 2 * y + 1]
    up[x, y] = down[x // 2, y // 2] + down[(x + 1) // 2, (y + 1) // 2]
    out[x, y] = up[x, y] - image()[x, y]
    return out, [(5, 11), (3, 6)]


def grid() -> tuple[hl.Func, Region]:
    """A histogram of each cell, read where the image says."""
    cells, sums, out = hl.funcs("cells sums out")
    r = hl.RDom([(0, 4)], "r")
    cells[x, y, z] = hl.f32(0)
    level = hl.clamp(image()[x * 4 + r, y], 0.0, 1.0)
    cells[x, y, hl.i32(level * 5.0)] += level
    sums[x, y, z] = cells[x, y, z] + cells[x, y, z + 1]
    chosen = hl.i32(hl.clamp(image()[x, y], 0.0, 1.0) * 4.0)
    out[x, y] = sums[x // 4, y // 2, chosen] + sums[x // 4, y // 2 + 1, chosen]
    return out, [(9, 14), (4, 5)]


def convolution() -> tuple[hl.Func, Region]:
    bias, conv, out = hl.funcs("bias conv out")
    r = hl.RDom([(0, 3), (0, 3)], "r")
    bias[x, y] = image()[x, 0] * 0.5
    conv[x, y] = bias[x, y]
    conv[x, y] += image()[x + r.x, y + r.y] * image()[r.x, r.y]
    out[x, y] = hl.max(conv[x, y], 2.0)
    return out, [(1, 10), (2, 9)]


def scan() -> tuple[hl.Func, Region]:
    """A recurrence down the rows, the rows of which a second one scales."""
    sums, out = hl.funcs("sums out")
    r = hl.RDom([(1, 11)], "r")
    sums[x, y] = image()[x, y]
    sums[x, r] = sums[x, r - 1] * 0.5 + image()[x, r]
    sums[x, r - 1] = sums[x, r - 1] * 2.0
    out[x, y] = sums[x, y] + sums[x + 1, y + 1]
    return out, [(2, 9), (3, 6)]


def colors() -> tuple[hl.Func, Region]:
    """Planes that share a ratio."""
    gray, ratio, out = hl.funcs("gray ratio out")
    gray[x, y] = image()[x, y] + image()[x + 2, y + 1]
    ratio[x, y] = image()[x + 1, y] / (gray[x, y] + 1.0)
    out[x, y, z] = ratio[x, y] * image()[x, y + z] + gray[x, y + 1]
    return out, [(4, 13), (1, 6), (0, 3)]


def placements(bodies: Bodies) -> Iterator[StagePlaces]:
    funcs = [f for f in bodies.program.stages if options(bodies, f)]
    for places in product(*(options(bodies, f) for f in funcs)):
        yield StagePlaces(bodies, dict(zip(funcs, places, strict=True)))


def tiled(prices: Prices, placement: StagePlaces) -> Iterator[tuple[Any, Any]]:
    """The tiles that each Func at root can have."""
    rows = [f for f in placement.stored if placement.of(f) is Place.ROW]
    for f in placement.stored:
        if placement.of(f) is Place.ROOT:
            yield f, prices.tiles_of(f, rows)


def run(kernel: Any) -> np.ndarray:
    verify(kernel)
    (out,) = kernel.outputs
    result = np.zeros(out.shape, out.dtype.numpy)
    arrays = dict.fromkeys(kernel.inputs, IMAGE) | {out: result}
    interp.run(kernel, arrays)
    return result


@pytest.mark.parametrize(
    ("build", "least"),
    [(blur, 8), (pyramid, 8), (colors, 8), (grid, 8), (convolution, 8), (scan, 2)],
)
def test_every_place_gives_the_same(
    build: Callable[[], tuple[hl.Func, Region]], least: int
) -> None:
    out, region = build()
    want = run(out.kernel(region))
    stages = out.regions(region)
    bodies = Bodies(program(stages), COSTS)
    prices = Prices(bodies)
    legal = set()
    for n, placement in enumerate(placements(bodies)):
        priced = prices.of(placement)
        if priced is None:
            continue
        tiles = {f: some[n % len(some)] for f, some in tiled(prices, placement)}
        found = Found(placement, Priced(0.0, priced.tiles | tiles))
        try:
            made = scheduled(stages, found, "k", 1 + n % 2)
        except ScheduleError:
            continue
        np.testing.assert_allclose(run(made.kernel), want, rtol=1e-5)
        legal.add(str(made.kernel))
    assert len(legal) >= least
