"""Sums on tensor cores that blocks share, and add to atomically: results, faults, decisions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.targets.cuda.running import SM80, load_counted
from tests.targets.cuda.test_cluster_tiles import ONE, SM90A, half
from tests.targets.cuda.test_group_tiles import along_rows
from tests.targets.cuda.test_tensor_tiles import batched, launches, rounded, scheduled
from tests.targets.cuda.test_tensor_tiles import turned as by_rows
from tests.targets.simt.products import (
    Case,
    arrays,
    expected,
    interpreted,
    product,
)
from tilewright.base.dtypes import float16, float32, int8, int32
from tilewright.compute.build import reduce_
from tilewright.expr.nodes import Buffer, Cast, Expr
from tilewright.loops.launch import LaunchProgram
from tilewright.schedule.space import Point
from tilewright.targets import registry
from tilewright.targets.cuda import report
from tilewright.targets.cuda.emit import ptx
from tilewright.targets.cuda.tensor_choice import GROUPS
from tilewright.targets.cuda.tensor_tiles import TensorCores
from tilewright.targets.cuda.tensor_tiling import TensorTile
from tilewright.targets.simt.last_wave import WHOLE

FAST = TensorCores(SM80, exact=False, any_order=True)
TILE, TINY = TensorTile(32, 32, 32, 2, 1), TensorTile(16, 32, 16, 1, 1)
INTEGERS = product(64, 96, 200, int8, int32)
FLOATS = half(64, 96, 200)


def chosen(
    case: Case, tile: TensorTile = TILE, blocks: int = 1, **how: object
) -> Point:
    cores = how.pop("cores", FAST)
    assert isinstance(cores, TensorCores)
    name = "group_tile" if cores.kind is GROUPS else "tensor_tile"
    own = {name: tile, "last_wave": WHOLE, **how}
    return scheduled(case, cores, **own, **({"blocks": blocks} if blocks > 1 else {}))


def shared(case: Case, tile: TensorTile, blocks: int, stages: int) -> LaunchProgram:
    """Launches that clear the results, and add so many parts to each."""
    p = launches(chosen(case, tile, blocks, stages=stages))
    assert len(p.launches) == 2 and p.launches[1].grid[1] == blocks
    assert repr(p).count("atomic Y[") == 1 and not p.workspace
    return p


# -- results


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("case", "tile", "blocks", "stages"),
    [
        (INTEGERS, TILE, 4, 1),  # the last part is shorter
        (FLOATS, TILE, 4, 2),
        (by_rows(64, 32, 128), TILE, 2, 2),
        (batched(3, 32, 64, 80), TINY, 3, 2),
        (along_rows(2, 64, 3, 96, 32), TILE, 2, 2),  # rows of two dimensions
    ],
)
def test_parts_of_blocks_are_added_to_cleared_results(case, tile, blocks, stages):
    p = shared(case, tile, blocks, stages)
    given = arrays(p)
    want = expected(case, given)
    given[p.outputs[0]][...] = 7
    _, (made,) = load_counted(p, SM80, given)
    assert np.array_equal(made, want)
    cleared = replace(p, launches=p.launches[1:])
    _, (made,) = load_counted(cleared, SM80, given)
    assert np.array_equal(made, want + 7)


def test_they_have_no_race():
    case = half(16, 64, 32)
    p = shared(case, TINY, 2, 1)
    given = arrays(p)
    want = expected(case, given)
    assert np.array_equal(interpreted(p, given), want)


@pytest.mark.skipif(report.ptxas() is None, reason="there is no ptxas")
def test_ptxas_holds_them_in_registers():
    p = launches(chosen(half(1024, 1024, 4096), TensorTile(128, 128, 32, 2, 4), 4))
    used = report.assemble(ptx(p, SM80), SM80)[1][p.launches[1].name]
    assert 90 <= used.registers <= 128
    assert used.stack == used.spill_stores == used.spill_loads == 0


# -- which there are


def counts(case: Case, tile: TensorTile = TILE, **how: object) -> tuple[object, ...]:
    """The numbers of blocks that may share a sum; none where it is no choice."""
    point = chosen(case, tile, **how)
    assert point.values.get("mm.blocks", 1) == 1
    assert "atomic" not in repr(launches(point))
    return next((p.candidates for p in point.parameters if p.name == "mm.blocks"), ())


def channels_first(filters: int, channels: int, size: int) -> Case:
    """A convolution with a window of three rows."""
    a = Buffer("A", (channels, size + 2, size), float16)
    b = Buffer("B", (filters, channels, 3), float16)
    y = Buffer("Y", (filters, size, size), float32)

    def value(f: Expr, i: Expr, j: Expr, c: Expr, u: Expr) -> Expr:
        return Cast(a[c, i + u, j], float32) * Cast(b[f, c, u], float32)

    return [reduce_("mm", y, (channels, 3), "add", value)]


SLOW = replace(FAST, any_order=False)


@pytest.mark.parametrize(
    ("case", "how", "found"),
    [
        (INTEGERS, {"cores": SLOW}, (1, 2, 4)),
        (FLOATS, {}, (1, 2, 4)),
        (FLOATS, {"cores": SLOW}, ()),  # floats, whose order counts
        (half(63, 96, 200), {}, ()),  # tiles do not fill the results
        (half(64, 90, 200), {}, ()),
        (half(64, 96, 32), {}, ()),  # one step
        (rounded(64, 96, 200), {}, ()),  # something follows
        (channels_first(64, 96, 8), {}, ()),  # stored by columns
    ],
)
def test_blocks_share_sums_where_that_is_allowed(case, how, found):
    """Alone is the default."""
    assert counts(case, **how) == found


def test_groups_of_warps_and_the_parts_of_a_last_wave_do_not_share():
    groups = TensorCores(SM90A, False, GROUPS, any_order=True)
    case = half(256, 256, 512)
    point = chosen(case, ONE, cores=groups, boxes=False)
    assert "mm.blocks" not in {p.name for p in point.parameters}
    few = replace(SM80, rates=SM80.rates._replace(units=4))
    cores = replace(FAST, machine=few)
    names = {p.name: p.candidates for p in chosen(FLOATS, cores=cores).parameters}
    assert "mm.blocks" in names
    wave = next(w for w in names["mm.last_wave"] if w != WHOLE)
    own = chosen(FLOATS, cores=cores, last_wave=wave)
    assert "mm.blocks" not in {p.name for p in own.parameters}


def test_the_mode_of_arithmetic_decides():
    for how in ({"fast": True}, {}):
        found = registry.target("cuda", **how).tensor_cores
        assert [x.any_order for x in found] == [bool(how)] * 2
