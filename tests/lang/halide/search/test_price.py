"""What the search decides, on several processors."""

from __future__ import annotations

import pytest

from tilewright import halide as hl
from tilewright.lang.halide.search.copies import program
from tilewright.targets.registry import target
from tilewright.tune.features.facts import Facts
from tilewright.tune.stages.beam import Found, search
from tilewright.tune.stages.bodies import Bodies
from tilewright.tune.stages.costs import StageCosts
from tilewright.tune.stages.places import Place

x, y, z = hl.vars("x y z")
MACHINES = {
    "avx2": Facts(),
    "avx512": Facts(vector=64, registers=32, l2=1 << 20, l3=32 << 20),
    "small-caches": Facts(vector=16, l2=256 << 10, l3=4 << 20),
}


@pytest.fixture(params=MACHINES, name="costs")
def machine(request: pytest.FixtureRequest) -> StageCosts:
    return StageCosts(MACHINES[request.param])


def best(out: hl.Func, size: list[int], costs: StageCosts) -> tuple[Found, dict]:
    stages = program(out.regions(size))
    found = search(Bodies(stages, costs))[0]
    return found, {f.name: found.placement.of(f) for f in stages.stages}


def test_cheap_sums_are_recomputed_in_tall_tiles(costs: StageCosts) -> None:
    """Nothing but the image and the result moves through memory, in several rows at a time."""
    image = hl.ImageParam(hl.UInt(16), 2, "image")
    rows, both = hl.funcs("rows both")
    rows[x, y] = image[x, y] + image[x + 1, y] + image[x + 2, y]
    both[x, y] = rows[x, y] + rows[x, y + 1] + rows[x, y + 2]
    found, places = best(both, [6400, 4800], costs)
    assert places["rows"] in (Place.INLINE, Place.TILE)
    [tile] = found.priced.tiles.values()
    assert tile[1] >= 4


def test_dear_values_that_many_read_are_computed_once(costs: StageCosts) -> None:
    image = hl.ImageParam(hl.Float(32), 2, "image")
    dear, out = hl.funcs("dear out")
    dear[x, y] = hl.exp(image[x, y]) / hl.log(image[x + 1, y])
    around = [dear[x + a, y + b] for a in (0, 1, 2) for b in (0, 1, 2)]
    out[x, y] = sum(around[1:], around[0])
    _, places = best(out, [1500, 2000], costs)
    assert places["dear"] is Place.ROW


def test_a_table_is_computed_before(costs: StageCosts) -> None:
    image = hl.ImageParam(hl.UInt(8), 2, "image")
    table, out = hl.funcs("table out")
    table[x] = hl.pow(hl.f32(x) / 255.0, hl.f32(0.45))
    out[x, y] = table[hl.i32(image[x, y])]
    _, places = best(out, [1500, 2000], costs)
    assert places["table"] is Place.ROOT


def test_values_that_data_choose_from_are_side_by_side(costs: StageCosts) -> None:
    """Unless a reader takes whole planes of them."""
    image = hl.ImageParam(hl.Float(32), 2, "image")
    level = hl.i32(hl.clamp(image[x, y], 0.0, 1.0) * 15.0)
    planes, out = hl.funcs("planes out")
    planes[x, y, z] = hl.pow(image[x * 8, y * 8] + hl.f32(z), image[x, z])
    chosen = planes[x // 8, y // 8, level]
    out[x, y] = chosen
    found, places = best(out, [1536, 1024], costs)
    assert places["planes"] is not Place.INLINE
    assert [*found.placement.laid_out.values()] == [("z",)]
    both = hl.Func("both")
    both[x, y] = chosen + planes[x, y // 8, 0]
    found, _ = best(both, [1536, 1024], costs)
    assert not found.placement.laid_out


def test_a_reduction_is_summed_in_registers(costs: StageCosts) -> None:
    a, b = (hl.ImageParam(hl.Float(32), 2, name) for name in "ab")
    k = hl.RDom([(0, 512)], "k")
    product, out = hl.funcs("product out")
    product[x, y] += a[k, y] * b[x, k]
    out[x, y] = hl.max(product[x, y], 0.0)
    found, places = best(out, [512, 512], costs)
    assert places["product"] is Place.TILE
    [(across, down)] = found.priced.tiles.values()
    assert across * down >= 8


def test_caches_are_as_fast_as_a_machine_description_says() -> None:
    """And values are computed again where the second cache is slow."""
    image = hl.ImageParam(hl.Float(32), 2, "image")
    rows, both = hl.funcs("rows both")
    rows[x, y] = (image[x, y] + image[x + 1, y]) * (image[x, y] - image[x + 1, y])
    both[x, y] = rows[x, y] + rows[x, y + 7] * rows[x, y + 15]
    decided = {}
    for measured in (1.0, 16.0, 64.0):
        given = {"costs": {"second_bytes": measured, "far_bytes": 12.0}}
        described = target("cpu", "x86-64-v3", description=given)
        costs = StageCosts(Facts.of(described))
        size = costs.facts.l2 // 4
        assert costs.bytes_per_cycle(size) == measured * costs.second
        assert costs.bytes_per_cycle(costs.facts.l3 // 4, costs.streams) == 12.0
        decided[measured] = best(both, [2000, 1000], costs)[1]["rows"]
    assert decided == {1.0: Place.INLINE, 16.0: Place.INLINE, 64.0: Place.ROW}
