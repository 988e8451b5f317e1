"""Rows that several blocks share: a choice of the sketch of rows, where a GPU has clusters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import pytest

from tests.loops.gpu_kernels import barriers, without_barrier
from tests.targets.cuda.running import load_counted, run_in
from tests.targets.simt.groups import (
    argmax,
    centered,
    check,
    inputs,
    row_sum,
    softmax,
)
from tilewright.base.dtypes import float32
from tilewright.compute.build import map_, reduce_
from tilewright.expr.nodes import Buffer, Expr, const
from tilewright.loops import launch_interp
from tilewright.loops.launch import LaunchProgram
from tilewright.loops.lower import lower
from tilewright.loops.passes.to_launches import to_launches
from tilewright.loops.shared_memory import RaceError
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.targets.cuda import report
from tilewright.targets.cuda.emit import ptx
from tilewright.targets.cuda.machine import machine
from tilewright.targets.simt import row_cost
from tilewright.targets.simt.machine import SimtMachine
from tilewright.targets.simt.row_cost import Rows
from tilewright.targets.simt.rows import by_rows
from tilewright.testing.ptx.traffic import AccessKind

SM90A = machine("sm_90a")


def deviation(m: int, n: int) -> Any:
    """Each row minus its sum, over the sum of squares of these."""
    x, y = (Buffer(name, (m, n), float32) for name in "xy")
    total, square = (Buffer(name, (m,), float32) for name in ("total", "square"))

    def less(i: Expr, k: Expr) -> Expr:
        return x[i, k] - total[i]

    made = [
        reduce_("sum", total, (n,), "add", lambda i, k: x[i, k]),
        reduce_("sq", square, (n,), "add", lambda i, k: less(i, k) * less(i, k)),
        map_("out", y, lambda i, j: less(i, j) / (square[i] + const(1, float32))),
    ]
    return lower("deviation", made, params=[x, y], outputs=[y]), made


GROUPS: dict[str, Callable[..., Any]] = {
    "softmax": softmax,
    "deviation": deviation,
    "row_sum": row_sum,
    "argmax": argmax,
}
# rows, elements, blocks, threads of each
SIZES = [(3, 301, 4, 32), (2, 65, 2, 16), (2, 255, 8, 8), (5, 8, 4, 2), (3, 5, 2, 2)]


def rows(group: Any, of: SimtMachine, choose: Choices) -> Schedule:
    kernel, computations = group
    return by_rows(Schedule(kernel), computations, of, choose)


def launched(group: Any, blocks: int, lanes: int) -> LaunchProgram:
    """A group whose rows so many blocks share, of so many threads each."""
    chosen = Choices({"blocks": blocks, "lanes": lanes})
    made = rows(group, SM90A.simt, chosen)
    return to_launches(made.kernel, 32, True, True)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", GROUPS)
def test_blocks_share_a_row(name, size):
    *extents, blocks, lanes = size
    group = GROUPS[name](*extents)
    p = launched(group, blocks, lanes)
    (launch,) = p.launches
    assert launch.cluster == (blocks, 1, 1) and launch.grid[1] == extents[0]
    check(group[0], p, inputs(group[0]))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", GROUPS)
def test_their_ptx_is_right(name, size):
    *extents, blocks, lanes = size
    group = GROUPS[name](*extents)
    check(
        group[0],
        launched(group, blocks, lanes),
        inputs(group[0]),
        lambda p, arrays: run_in(p, arrays, "sm_90a"),
        rtol=1e-4,
    )


def test_each_barrier_of_the_cluster_is_needed():
    group = softmax(2, 101)
    p = launched(group, 4, 32)
    meetings = [n for n, s in enumerate(barriers(p)) if s.scope == "cluster"]
    assert len(meetings) == 3  # the largest value, the sum, and before a block ends
    for n in meetings:
        with pytest.raises(RaceError):
            launch_interp.run(without_barrier(p, n), inputs(group[0]))


def test_each_block_keeps_its_part_in_registers():
    """A row is read once, and only what blocks exchange is in shared memory."""
    (launch,) = launched(softmax(2, 4096), 8, 32).launches
    assert [b.scope for b in launch.shared] == ["cluster", "cluster"]
    assert str(launch.body).count(" = x[") == 1


@pytest.mark.skipif(report.ptxas() is None, reason="there is no ptxas")
@pytest.mark.parametrize("name", GROUPS)
def test_ptxas_finds_no_spills(name):
    p = launched(GROUPS[name](4, 65536), 8, 256)
    for used in report.assemble(ptx(p, SM90A), SM90A)[1].values():
        assert used.stack == used.spill_stores == 0 and not used.is_serialized


def choices(group: Any, of: SimtMachine, lanes: int) -> tuple[object, ...]:
    """Of how many blocks may share a row."""
    seen: list[tuple[object, ...]] = []

    def pick(name: str, candidates: Any, default: Any) -> Any:
        if name == "blocks":
            seen.append(tuple(candidates))
        return lanes if name == "lanes" else default

    rows(group, of, Choices(pick=pick))
    return seen[0] if seen else (1,)


@pytest.mark.parametrize(
    ("size", "of", "lanes", "possible"),
    [
        ((3, 301), SM90A.simt, 32, (1, 2, 4)),
        ((3, 4096), SM90A.simt, 32, (1, 2, 4, 8)),
        ((3, 31), SM90A.simt, 32, (1,)),  # a row shorter than two blocks
        ((131, 4096), SM90A.simt, 32, (1, 2, 4, 8)),
        ((132, 4096), SM90A.simt, 32, (1,)),  # rows for all units
        ((3, 4096), SM90A.simt, 1, (1,)),
        ((3, 4096), machine("sm_89").simt, 32, (1,)),
        ((3, 4096), replace(SM90A.simt, bulk_copies=False), 32, (1,)),
    ],
)
def test_they_are_a_choice_where_there_are_fewer_rows_than_units(
    size, of, lanes, possible
):
    assert choices(softmax(*size), of, lanes) == possible


def test_one_block_has_a_row_whose_result_is_read_from_memory_of_the_caller():
    """Only one block writes the mean."""
    assert choices(centered(3, 301), SM90A.simt, 32) == (1,)


def test_one_block_has_a_row_whose_loops_are_not_equally_long():
    x, y = Buffer("x", (3, 301), float32), Buffer("y", (3, 200), float32)
    total = Buffer("total", (3,), float32)
    made = [
        reduce_("sum", total, (301,), "add", lambda i, k: x[i, k]),
        map_("out", y, lambda i, j: x[i, j] - total[i]),
    ]
    group = lower("uneven", made, params=[x, y], outputs=[y]), made
    assert choices(group, SM90A.simt, 32) == (1,)


@pytest.mark.parametrize(
    ("count", "width", "of", "blocks"),
    [
        (4, 65536, SM90A, 8),
        (4, 16384, SM90A, 1),  # too short for the time that meetings take
        (64, 65536, SM90A, 1),  # as long as memory takes
        (4, 65536, machine("sm_80"), 1),
    ],
)
def test_blocks_share_a_row_by_default_where_a_gain_is_expected(
    count, width, of, blocks
):
    made = rows(softmax(count, width), of.simt, Choices())
    (launch,) = to_launches(made.kernel, 32, True, True).launches
    assert prod(launch.cluster) == blocks and prod(launch.grid) == count * blocks


def test_meetings_that_take_long_decide(monkeypatch):
    asked = Rows(4, 262144, 4, 3, SM90A.simt, 2)
    assert row_cost.usual_blocks(asked, 1024, (1, 2, 4, 8)) == 8
    monkeypatch.setattr(row_cost, "CLUSTER_SYNC", 2000.0)
    assert row_cost.usual_blocks(asked, 1024, (1, 2, 4, 8)) == 1


@pytest.mark.parametrize("name", GROUPS)
def test_what_blocks_exchange_is_what_the_model_counts(name):
    group = GROUPS[name](3, 601)
    p = launched(group, 4, 64)
    reductions = sum(not c.is_map for c in group[1])
    asked = Rows(3, 601, 4, len(group[1]), SM90A.simt, reductions)
    meetings = [s for s in barriers(p) if s.scope == "cluster"]
    assert len(meetings) == row_cost.cluster_meetings(asked)
    traffic, _ = load_counted(p, SM90A)
    # One thread stores what only is stored; all go on with what is used along the row.
    warps = 3 * 4 * 2 if group[1][-1].is_map else 3
    slices = [b for b in p.launches[0].shared if b.scope == "cluster"]
    each = row_cost.peer_loads(asked, 4) * len(slices) // reductions
    assert traffic.requests[AccessKind("cluster", False)] == warps * each
