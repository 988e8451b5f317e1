"""Schedules of reductions and transposes on GPUs: by the launch interpreter, and on PoCL."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from tests.targets.opencl.running import pocl, program_on
from tests.targets.simt.groups import (
    GROUPS,
    argmax,
    check,
    column_sum,
    families,
    inputs,
    row_sum,
    softmax,
    total,
    transpose,
)
from tilewright.base.dtypes import float16, float64, int32
from tilewright.compute.build import reduce_
from tilewright.compute.reducer import Reducer
from tilewright.expr.nodes import Buffer, Select, Var, const
from tilewright.loops.lower import lower
from tilewright.loops.passes.to_launches import to_launches
from tilewright.targets.opencl.emit import emit
from tilewright.targets.simt.machine import GENERIC, MALI, POCL

TINY = replace(GENERIC, name="tiny", block_threads=8, shared=200, thread_registers=4)
WARPS = replace(GENERIC, name="warps", warp=32, block_threads=1024, units=2)
MACHINES = {m.name: m for m in (GENERIC, MALI, POCL, TINY, WARPS)}
SIZES = [(70, 3), (3, 70), (1, 65), (2, 2), (65, 1)]


def default(group, machine=GENERIC):
    """The kernel of the best sketch, as launches."""
    best = families(group, machine)[0].default().schedule
    return to_launches(best.kernel, machine.warp)


@pytest.mark.covering(1)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", GROUPS)
def test_groups_are_right_on_each_machine(name, machine):
    for m, n in SIZES[:2] if name != "transpose" else [(9, 5)]:
        group = GROUPS[name][0](m, n)
        check(group[0], default(group, MACHINES[machine]), inputs(group[0]))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", GROUPS)
def test_groups_of_all_sizes_are_right(name, size):
    group = GROUPS[name][0](*size)
    check(group[0], default(group), inputs(group[0]))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seeds", [range(3), range(3, 6)], ids=str)
@pytest.mark.parametrize("name", GROUPS)
def test_each_point_of_a_space_is_right(name, seeds):
    make, family = GROUPS[name]
    group = make(70, 9) if name == "column_sum" else make(9, 70)
    sketch = families(group, WARPS)[0]
    assert sketch.name == family
    for seed in seeds:
        found = sketch.random(random.Random(seed)).schedule
        check(group[0], to_launches(found.kernel, 32), inputs(group[0], seed))


def test_no_rows_are_no_family_of_rows():
    for name, (make, _) in GROUPS.items():
        group = make(0, 5)
        assert [s.name for s in families(group, GENERIC)] == ["by element"], name
        check(group[0], default(group), inputs(group[0]))


def test_exact_arithmetic_keeps_the_order_of_reductions():
    for name, (make, family) in GROUPS.items():
        found = [s.name for s in families(make(40, 70), GENERIC, exact=True)]
        assert (family in found) == (name == "transpose")


def test_a_reduction_that_does_not_commute_is_in_order():
    """The steps of a thread are not neighbors: a tree would give another value than the first."""
    a, b = Var("a", int32), Var("b", int32)
    zero = const(0, int32)
    first = Reducer(
        "first", (a,), (b,), (Select(a.eq(zero), b, a),), (zero,), commutative=False
    )
    x = Buffer("x", (64, 100), int32)
    for extents, index in (((64,), "row"), ((100,), "column"), ((), "total")):
        y = Buffer("y", extents, int32)
        made = {
            "row": lambda y: reduce_("f", y, (100,), first, lambda i, k: x[i, k]),
            "column": lambda y: reduce_("f", y, (64,), first, lambda j, k: x[k, j]),
            "total": lambda y: reduce_("f", y, (100,), first, lambda k: x[0, k]),
        }[index](y)
        group = lower("f", [made], params=[x, y], outputs=[y]), [made]
        assert [s.name for s in families(group, GENERIC)] == ["by element"], index
        check(group[0], default(group), inputs(group[0]))


@pytest.mark.parametrize("dtype", [float16, float64, int32])
def test_dtypes(dtype):
    for make in (
        (row_sum, column_sum, transpose) if dtype is int32 else (softmax, argmax)
    ):
        group = make(3, 40, dtype)
        check(group[0], default(group), inputs(group[0]), rtol=2e-2)


@pytest.mark.parametrize("make", [softmax, argmax, row_sum])
def test_values_that_are_no_numbers(make):
    kernel, computations = make(5, 37)
    given = inputs(kernel)
    x = given[kernel.params[0]]
    x[0], x[1, 3], x[2, 36], x[3, 0] = -np.inf, np.nan, np.inf, -0.0
    check(kernel, default((kernel, computations), WARPS), given)


def test_a_softmax_is_one_launch_that_reads_its_rows_once():
    found = default(softmax(8, 300), WARPS)
    assert len(found.launches) == 1 and not found.workspace
    assert str(found).count(" x[") == 1  # of memory


def test_rows_too_long_for_registers_and_shared_memory_are_in_memory():
    point = families(softmax(2, 300), TINY)[0].default()
    assert point.values["e.scope"] == "global"
    point = families(softmax(2, 2000), replace(TINY, shared=20_000))[0].default()
    assert point.values["e.scope"] == "shared"


@pytest.mark.parametrize(("width", "least"), [(4096, 1), (4097, 2)])
def test_a_thread_has_no_longer_row_for_itself_than_its_memory(width, least):
    """The OpenCL emitter refuses larger arrays of a thread."""
    (sketch, *_) = families(softmax(3, width), MALI)
    (lanes,) = (x for x in sketch.default().parameters if x.name == "lanes")
    assert min(lanes.candidates) == least
    emit(to_launches(sketch.at({"lanes": least}).schedule.kernel, 1), False)


def test_a_thread_without_the_memory_for_a_row_has_another_schedule():
    """Here the only thread of a block would have to hold the row."""
    found = families(softmax(3, 5000), replace(MALI, block_threads=1))
    assert "rows" not in [s.name for s in found]


def test_rows_longer_than_the_memory_of_a_thread_are_right_on_pocl():
    group = softmax(128, 5000)
    assert families(group, MALI)[0].default().values["lanes"] == 2
    device, group = pocl(), softmax(2, 5000)
    point = families(group, MALI)[0].at({"lanes": 2, "e.scope": "global"})
    p = to_launches(point.schedule.kernel, 1)

    def run(program, arrays):
        return program_on(device, program, arrays)

    check(group[0], p, inputs(group[0]), run, rtol=1e-4)


def test_a_large_total_takes_two_passes():
    found = default(total(200, 100))
    blocks = [launch.grid[0] for launch in found.launches]
    assert max(blocks) > 1 and blocks[-1] == 1


def test_few_columns_have_several_threads_each():
    found = default(column_sum(300, 40))
    assert found.launches[0].threads == (8, 32, 1)


def test_rows_of_a_transposed_tile_are_apart():
    found = default(transpose(50, 40))
    assert found.launches[0].shared[0].shape == (32, 1, 33)


def test_shared_memory_of_a_block_is_never_more_than_there_is():
    for machine in MACHINES.values():
        for make, _ in GROUPS.values():
            for launch in default(make(40, 90), machine).launches:
                sizes = [b.size * b.dtype.itemsize for b in launch.shared]
                assert sum(sizes) <= machine.shared
                assert np.prod(launch.threads) <= machine.block_threads


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", GROUPS)
def test_on_pocl(name):
    group = GROUPS[name][0](17, 70)
    device = pocl()

    def run(program, arrays):
        return program_on(device, program, arrays)

    check(group[0], default(group), inputs(group[0]), run)
