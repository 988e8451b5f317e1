"""Running sums in parts: by the threads of a block, adjacent ones, and one long row by blocks."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from tests.loops.gpu_kernels import barriers, without_barrier
from tests.targets.opencl.running import pocl, program_on
from tests.targets.simt.groups import check, families, inputs, scan
from tilewright.base.dtypes import float16, int32
from tilewright.base.errors import ExecutionError
from tilewright.compute.build import reduce_
from tilewright.compute.nodes import PS
from tilewright.expr.nodes import Buffer
from tilewright.loops import launch_interp
from tilewright.loops.lower import lower
from tilewright.loops.parser import parse_program
from tilewright.loops.passes.to_launches import to_launches
from tilewright.targets.cuda.machine import machine as cuda
from tilewright.targets.cuda.target import Cuda
from tilewright.targets.simt.machine import GENERIC, MALI, POCL

H100 = Cuda(cuda("sm_90"), exact=False).simt
TINY = replace(GENERIC, block_threads=8, shared=500, unit_threads=8)
MACHINES = {m.name: m for m in (GENERIC, MALI, POCL)} | {"H100": H100, "tiny": TINY}
CASES = {
    "rows": (lambda: scan(3, 37), {"parts": 8}),
    "one column": (lambda: scan(3, 37, exclusive=True), {"parts": 4}),
    "columns": (lambda: scan(70, 5, across=True), {"parts": 4}),
    "exclusive columns": (lambda: scan(70, 3, True, True), {"parts": 2}),
    "one row": (lambda: scan(1, 37), {"parts": 8}),
    "blocks": (lambda: scan(1, 520), {"parts": 4, "blocks": 2}),
    "integers": (lambda: scan(2, 37, t=int32), {"parts": 8}),
    "half": (lambda: scan(2, 40, t=float16), {"parts": 4}),
}


def sketch(group, machine=GENERIC):
    """The sketch of scans."""
    return next(s for s in families(group, machine) if s.name == "scan")


def launches(group, machine=GENERIC, **values):
    point = sketch(group, machine).at(values)
    return to_launches(point.schedule.kernel, machine.warp)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_scans_in_parts_are_right(name):
    make, values = CASES[name]
    group = make()
    check(group[0], launches(group, **values), inputs(group[0]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", ["rows", "columns", "one row"])
def test_defaults_are_right_on_each_machine(name, machine):
    of = MACHINES[machine]
    group = CASES[name][0]()
    best = families(group, of)[0]
    assert best.name == "scan" or machine in ("mali", "pocl", "tiny")
    check(
        group[0], to_launches(best.default().schedule.kernel, of.warp), inputs(group[0])
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(6))
def test_each_point_is_right(seed):
    rng = random.Random(seed)
    group = rng.choice(list(CASES.values()))[0]()
    point = sketch(group).random(rng)
    check(group[0], to_launches(point.schedule.kernel), inputs(group[0], seed))


@pytest.mark.parametrize("name", ["rows", "exclusive columns"])
def test_each_barrier_is_needed(name):
    make, values = CASES[name]
    group = make()
    program = launches(group, **values)
    count = len(barriers(program))
    assert count >= 2
    for n in range(count):
        with pytest.raises(ExecutionError):
            launch_interp.run(without_barrier(program, n), inputs(group[0]))


def test_a_level_that_reaches_one_too_far_is_found():
    """A planted fault: what a level adds is one place off."""
    group = scan(2, 37)
    text = str(launches(group, parts=8))
    old = "y.acc.before[threadIdx.x - 4]"
    assert old in text
    wrong = parse_program(
        text.replace(old, "y.acc.before[threadIdx.x - 3]").split("\n")
    )
    arrays = dict(zip(wrong.params, inputs(group[0]).values(), strict=True))
    wanted = arrays[wrong.params[0]].cumsum(1)
    launch_interp.run(wrong, arrays)
    assert not (arrays[wrong.params[1]] == wanted).all()


def test_rows_are_copied_by_neighbors_and_parts_are_odd():
    group = scan(3, 64)
    values = sketch(group).at({"parts": 8}).values
    assert values == {"parts": 8, "x.staged": True, "y.staged": True}
    (launch,) = launches(group, parts=8).launches
    assert launch.grid == (3, 1, 1) and launch.threads == (8, 1, 1)
    assert "threadIdx.x * 9" in str(launch.body)


def test_many_scans_have_a_thread_each():
    assert [s.name for s in families(scan(40_000, 16), GENERIC)] == ["by element"]
    assert families(scan(4, 4096), GENERIC)[0].name == "scan"


def test_a_long_row_is_shared_by_blocks():
    group = scan(1, 1 << 16)
    program = launches(group)
    assert max(x.grid[0] for x in program.launches) > 8
    assert len(program.launches) == 4  # the start, sums, what is before them, and again


def test_what_blocks_exchange_fits_their_memory():
    for machine in MACHINES.values():
        for name in ("rows", "columns", "one row"):
            group = CASES[name][0]()
            best = families(group, machine)[0].default().schedule.kernel
            for launch in to_launches(best, machine.warp).launches:
                used = sum(b.size * b.dtype.itemsize for b in launch.shared)
                assert used <= machine.shared
                assert np.prod(launch.threads) <= machine.block_threads


def test_scans_of_two_dimensions_are_left_alone():
    x, y = Buffer("x", (5, 6), int32), Buffer("y", (5, 6), int32)
    c = reduce_(
        "s",
        y,
        (5, 6),
        "add",
        lambda i, j: x[i, j],
        index=lambda *i: i,
        extents=(),
        combine=PS,
    )
    group = lower("s", [c], params=[x, y], outputs=[y]), [c]
    assert "scan" not in [s.name for s in families(group, GENERIC)]


@pytest.mark.representatives("rows")
@pytest.mark.parametrize("name", CASES)
def test_on_pocl(name):
    make, values = CASES[name]
    group = make()
    device = pocl()
    check(
        group[0],
        launches(group, **values),
        inputs(group[0]),
        lambda program, arrays: program_on(device, program, arrays),
    )
