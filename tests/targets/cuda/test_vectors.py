"""Vectors of neighboring elements: the same sectors in fewer requests, where groups are whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.targets.cuda.running import SM80, program, run
from tests.targets.cuda.running import load_counted as counted
from tests.targets.simt.products import (
    arrays,
    convolution,
    expected,
    product,
    tiled,
    transposed,
)
from tests.targets.simt.products import program as launches
from tilewright.base.dtypes import DType, bfloat16, float16, float32, int8
from tilewright.compute.build import map_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr, Select, const
from tilewright.loops.nodes import For
from tilewright.schedule.space.patterns import classify
from tilewright.targets.cuda.emit import ptx
from tilewright.targets.simt.cost import fetch_width
from tilewright.targets.simt.products import product_of
from tilewright.targets.simt.schedules import sketches
from tilewright.targets.simt.tiling import SimtTile, tiling
from tilewright.targets.simt.vectors import element_widths, usual_width
from tilewright.testing.ptx.traffic import AccessKind
from tilewright.testing.random_kernels import plain

READ, WRITE = AccessKind("global", False), AccessKind("global", True)
OF = SM80.simt

# -- a vector loop in a thread

ROWS = """
program rows(x: float32[3, {n}]) -> y: float32[3, 64]:
  launch rows(x, y) grid [3, 1, 1] threads [16, 1, 1]:
    for l in 4 vector:
      y[blockIdx.x, threadIdx.x * 4 + l] = select({condition}, x[blockIdx.x, {place}], 2.5)"""
PLACE = "threadIdx.x * 4 + l"
# elements of a row, the condition, where reading begins, whether lanes agree, and rows are aligned
GUARDS = [
    (60, f"{PLACE} < 60", 0, True, True),
    (60, f"{PLACE} <= 59", 0, True, True),
    (60, f"{PLACE} < 59", 0, False, True),
    (60, f"{PLACE} <= 58", 0, False, True),
    (58, f"{PLACE} < 58", 0, False, False),
    (58, f"{PLACE} < 56", 0, True, False),
    (56, f"8 <= {PLACE}", 8, True, True),
    (56, f"7 < {PLACE}", 8, True, True),
    (56, f"9 <= {PLACE}", 8, False, True),
    (56, f"8 < {PLACE}", 8, False, True),
    (56, f"10 < {PLACE}", 8, False, True),
]


@pytest.mark.parametrize(("n", "condition", "start", "agree", "is_aligned"), GUARDS)
def test_a_group_is_one_load_where_its_lanes_agree(
    n, condition, start, agree, is_aligned
):
    place = f"{PLACE} + {-start}" if start else PLACE
    p = program(ROWS.format(n=n, condition=condition, place=place))
    text = ptx(p, SM80)
    assert ("ld.global.nc.v4.b32" in text) == (agree and is_aligned)
    assert text.count("st.global.v4.b32") == 1
    x = np.random.default_rng(n).random((3, n), np.float32)
    kept = [i for i in range(64) if eval(condition.replace(PLACE, str(i)))]
    want = np.full((3, 64), 2.5, np.float32)
    want[:, kept] = x[:, np.array(kept) - start]
    assert np.array_equal(run(p, [x])[0], want)


@pytest.mark.parametrize("start", range(1, 5))
def test_a_group_is_loaded_in_parts_that_are_aligned(start):
    p = program(ROWS.format(n=68, condition="l < 4", place=f"{PLACE} + {start}"))
    asked, _ = counted(p, SM80)
    assert asked.requests[READ] == 3 * {1: 4, 2: 2, 3: 4, 4: 1}[start]
    x = np.arange(3 * 68, dtype=np.float32).reshape(3, 68)
    assert np.array_equal(run(p, [x])[0], x[:, start : start + 64])


# -- maps


def scaled(m: int, n: int, dtype: DType = float32) -> list[Computation]:
    x, b = Buffer("x", (m, n), dtype), Buffer("b", (n,), dtype)
    y = Buffer("y", (m, n), dtype)
    return [map_("f", y, lambda i, j: x[i, j] * b[j] + x[i, j])]


def by_element(case, width):
    found = sketches(plain(case), case, OF)
    sketch = next(s for s in found if s.name == "by element")
    return launches(sketch.at({"f.width": width} if width > 1 else {}), OF)


@pytest.mark.parametrize(
    ("dtype", "width"), [(float32, 4), (float32, 2), (float16, 8), (bfloat16, 8)]
)
def test_a_map_asks_for_the_same_sectors_in_fewer_requests(dtype, width):
    case = scaled(16, 64, dtype)
    one, wide = (counted(by_element(case, n), SM80)[0] for n in (1, width))
    for kind in (READ, WRITE):
        assert one.requests[kind] == width * wide.requests[kind]
        assert wide.turns[kind] <= one.turns[kind]
    assert one.turns[WRITE] == wide.turns[WRITE] == 16 * 64 * dtype.itemsize // 32


@pytest.mark.parametrize(
    ("dtype", "n"), [(float32, 20), (float32, 18), (float16, 24), (int8, 40)]
)
def test_a_map_of_odd_rows_is_right(dtype, n):
    case = scaled(7, n, dtype)
    (widest,) = {max(x) for x in [element_widths(nest(case), OF)]}
    assert widest == min(16 // dtype.itemsize, n & -n)
    p = by_element(case, widest)
    given = arrays(p)
    want = expected(case, given)
    _, (made,) = counted(p, SM80, given)
    assert np.array_equal(made, want)


def nest(case) -> For:
    body = plain(case).body
    assert isinstance(body, For)
    return body


def mapped(value, shape=(8, 64), read=(8, 64)) -> list[Computation]:
    x, y = Buffer("x", read, float32), Buffer("y", shape, float32)
    return [map_("f", y, lambda i, j: value(x, i, j))]


def padded(x: Buffer, i: Expr, j: Expr) -> Expr:
    return Select(j < 62, x[i, j], const(0.0, float32))


ALONE = {
    "odd rows": scaled(8, 63),
    "turned": mapped(lambda x, i, j: x[j, i], read=(64, 8)),
    "every second": mapped(lambda x, i, j: x[i, 2 * j], read=(8, 128)),
    "a condition": mapped(padded),
}


@pytest.mark.parametrize("name", ALONE)
def test_elements_are_computed_alone(name):
    assert element_widths(nest(ALONE[name]), OF) == [1]


def test_machines_without_warps_have_no_vectors():
    assert element_widths(nest(scaled(8, 64)), replace(OF, warp=1)) == [1]


def test_vectors_are_for_maps_that_leave_work_for_all_units():
    least = OF.units * OF.usual_threads
    for rows, usual in ((least // 16, 4), (least // 16 - 1, 2), (least // 32 - 1, 1)):
        found = nest(scaled(rows, 64))
        assert usual_width(found, [1, 2, 4], OF) == usual


# -- tiles of products


def width(case, tile=(16, 16, 16, 16, 16), room=0, of=OF, side="left") -> int:
    found = product_of(classify(case))
    return fetch_width(tiling(found, SimtTile(*tile)), getattr(found, side), room, of)


def test_tiles_are_fetched_in_vectors_where_groups_are_whole():
    assert width(product(19, 28, 32)) == 4
    assert width(product(19, 28, 32), side="right") == 4
    assert width(product(19, 28, 32, float16, float32)) == 8
    assert width(product(19, 30, 32), side="right") == 2
    assert width(product(19, 29, 32), side="right") == 1
    assert width(product(19, 28, 32), room=1) == 1
    assert width(product(19, 28, 32), of=replace(OF, warp=1)) == 1
    assert width(product(19, 28, 18)) == 1  # steps of nine
    padded, pointwise = (convolution(8, 16, 16, n, 1) for n in (3, 1))
    sides = [width(c, side=s) for c in (padded, pointwise) for s in ("left", "right")]
    assert sides == [1, 1, 4, 4]  # windows of three begin at -1
    assert width(transposed(33, 20, 35)) == 1


@pytest.mark.parametrize(
    "case",
    [product(19, 28, 20), product(17, 13, 11), convolution(20, 8, 17, 1, 1)],
)
def test_a_product_of_ragged_tiles_is_right(case):
    p = launches(tiled(case, OF, tile=(16, 16, 16, 16, 16)), OF)
    given = arrays(p)
    want = expected(case, given)
    _, (made,) = counted(p, SM80, given)
    assert np.array_equal(made, want)
