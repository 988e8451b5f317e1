"""The terms of the cost model of tiles are what the interpreter of PTX counts."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.targets.cuda.running import load_counted
from tests.targets.simt.attention import attention
from tests.targets.simt.products import Case, convolution, product, program, transposed
from tests.targets.simt.products import tiled as tiled_point
from tilewright.base.dtypes import float16, float32, float64
from tilewright.expr.nodes import Load
from tilewright.loops.launch import LaunchProgram
from tilewright.loops.passes.to_launches import to_launches
from tilewright.schedule.space.patterns import classify
from tilewright.targets.cuda.machine import machine
from tilewright.targets.simt.attention import attention_of, shape
from tilewright.targets.simt.attention_cost import AttentionTile, reads
from tilewright.targets.simt.cost import (
    WarpRequest,
    fetch_request,
    read_request,
    shared_bytes,
    store_request,
)
from tilewright.targets.simt.products import product_of
from tilewright.targets.simt.schedules import sketches
from tilewright.targets.simt.tiling import SimtTile, Tiling, tiling
from tilewright.testing.ptx.traffic import AccessKind, WarpTraffic

OF = machine("sm_80")
CASES = {
    "square": (lambda: product(64, 64, 64), (32, 32, 8, 8, 16)),
    "one block": (lambda: product(64, 64, 32), (64, 64, 16, 16, 16)),
    "conflicts": (lambda: transposed(64, 64, 32), (32, 32, 16, 16, 16)),
    "float16": (lambda: product(32, 32, 32, float16, float32), (32, 32, 16, 16, 16)),
    "float64": (lambda: product(32, 32, 32, float64), (32, 32, 16, 16, 16)),
    "pointwise": (lambda: convolution(32, 8, 16, 1, 1), (16, 32, 32, 8, 16)),
}


def counted(p: LaunchProgram) -> WarpTraffic:
    return load_counted(p, OF)[0]


def turns(found: Iterable[WarpRequest], times: int) -> int:
    return times * sum(r.requests * r.turns for r in found)


def tiled(
    case: Case, tile: tuple[int, ...], **rooms: int
) -> tuple[LaunchProgram, Tiling, dict[Load, int]]:
    """A product in tiles, and the room between rows that its operands have."""
    point = tiled_point(case, OF.simt, tile=tile, **rooms)
    chosen = {x.name: x.value for x in point.parameters}
    found = product_of(classify(case))
    assert found is not None
    held = {x: chosen[f"{x.buffer.name}.room"] for x in (found.left, found.right)}
    return program(point, OF.simt), tiling(found, SimtTile(*tile)), held


def check(p: LaunchProgram, plan: Tiling, rooms: dict[Load, int]) -> None:
    found, times, of = counted(p), plan.blocks * plan.steps, OF.simt
    asked = {
        AccessKind("global", False): fetch_request,
        AccessKind("shared", True): store_request,
        AccessKind("shared", False): read_request,
    }
    for kind, request in asked.items():
        requests = [request(plan, x, n, of) for x, n in rooms.items()]
        assert found.turns[kind] == turns(requests, times)
        if request is not read_request:  # what a thread reads together is one load
            assert found.requests[kind] == times * sum(r.requests for r in requests)
    (launch,) = p.launches
    held = sum(b.size * b.dtype.itemsize for b in launch.shared)
    assert held == shared_bytes(plan, rooms, 1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_sectors_and_turns_of_the_banks_are_those_of_the_closed_form(name):
    case, tile = CASES[name]
    check(*tiled(case(), tile))


@pytest.mark.parametrize("room", [0, 1, 4])
def test_so_are_they_with_whatever_room_between_rows(room):
    check(*tiled(product(32, 32, 16), (32, 32, 16, 8, 16), **{"A.room": room}))


def test_ragged_tiles_read_fewer_sectors_than_the_model_says_and_no_other_turns():
    p, plan, rooms = tiled(product(19, 29, 21), (16, 16, 16, 16, 16))
    found, times = counted(p), plan.blocks * plan.steps
    fetched = turns(
        (fetch_request(plan, x, n, OF.simt) for x, n in rooms.items()), times
    )
    assert 0.5 * fetched < found.turns[AccessKind("global", False)] < fetched
    read = turns((read_request(plan, x, n, OF.simt) for x, n in rooms.items()), times)
    assert found.turns[AccessKind("shared", False)] == read


@pytest.mark.sampled(3)  # the tile of most rows
@pytest.mark.parametrize("tile", [(16, 4, 16), (16, 8, 8), (8, 8, 4)])
def test_attention_reads_shared_memory_as_often_as_the_model_says(tile):
    kernel, made = attention(16, 32, 16, 32)
    sketch = next(s for s in sketches(kernel, made, OF.simt) if s.name == "attention")
    point = sketch.at({"attention.tile": tile})
    found = counted(to_launches(point.schedule.kernel, 32))
    asked = shape(attention_of(made, OF.simt))
    blocks = -(-asked.rows // tile[0]) * asked.around * asked.blocks
    wanted = list(reads(asked, AttentionTile(*tile), OF.simt))
    assert found.turns[AccessKind("shared", False)] == turns(wanted, blocks)
    assert all(r.turns <= 2 for r in wanted)
    fetched = blocks * asked.keys * (asked.depth + asked.columns) * 4 // 32
    queries = asked.around * asked.rows * asked.depth * 4 // 32
    assert found.turns[AccessKind("global", False)] == fetched + queries


def test_a_thread_s_registers_are_nowhere_in_memory():
    p, *_ = tiled(product(32, 32, 16), (32, 32, 16, 8, 16))
    assert {a.memory for a in counted(p).requests} == {"global", "shared"}
