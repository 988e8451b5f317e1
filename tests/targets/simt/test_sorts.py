"""TopK by blocks of threads: bitonic sorts of parts of a row, and the best of these again."""

from __future__ import annotations

import numpy as np
import pytest

from tests.loops.gpu_kernels import barriers, without_barrier
from tests.targets.opencl.running import pocl, program_on
from tests.targets.simt.operators import check, families, inputs, kernel, kernels
from tilewright.base.errors import ExecutionError
from tilewright.graph.ops import topk
from tilewright.loops import interp, launch_interp
from tilewright.loops.passes.to_launches import to_launches
from tilewright.targets.cuda.machine import machine as cuda
from tilewright.targets.cuda.target import Cuda
from tilewright.targets.simt.machine import GENERIC, MALI, POCL

H100 = Cuda(cuda("sm_90"), exact=False).simt
MACHINES = {m.name: m for m in (GENERIC, MALI, POCL)} | {"H100": H100}


def model(rows, width, k, dtype="float", largest=1, axis=1):
    shape = [rows, width] if axis == 1 else [width, rows]
    best = [rows, k] if axis == 1 else [k, rows]
    return f"""({dtype}{shape} x) => ({dtype}{best} v, int64{best} i) <int64[1] k = {{{k}}}>
        {{ v, i = TopK<axis = {axis}, largest = {largest}>(x, k) }}"""


def expected(x, k, largest, axis):
    """Places of the best, the first of equal ones first; NaN is the largest."""
    keys = np.where(np.isnan(x), np.inf, x.astype("d")) * (-1 if largest else 1)
    order = np.argsort(keys, axis=axis, kind="stable")
    return order[:, :k] if axis == 1 else order[:k]


CASES = {
    "one row": (1, 21, 3, "float", 1, 1),
    "all of rows": (3, 16, 16, "float", 1, 1),
    "one of two": (2, 2, 1, "float", 1, 1),
    "one": (4, 1, 1, "float", 1, 1),
    "bytes": (2, 9, 4, "uint8", 1, 1),
    "smallest": (2, 9, 4, "float", 0, 1),
    "columns": (3, 13, 2, "float", 1, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_the_best_of_rows_are_in_order_and_ties_keep_theirs(name):
    _, _, k, dtype, largest, axis = CASES[name]
    program = kernel(model(*CASES[name]))
    x, values, places = program.params
    arrays = inputs(program, {"x": 2})
    arrays[x] = abs(arrays[x]) if dtype == "uint8" else arrays[x]
    interp.run(program, arrays)
    order = expected(arrays[x], k, largest, axis)
    best = np.take_along_axis(arrays[x], order, axis)
    np.testing.assert_array_equal(arrays[places], order)
    np.testing.assert_array_equal(arrays[values], best)


@pytest.fixture
def few(monkeypatch):
    """Blocks that sort eight elements, so that a row of some takes several of them, and turns."""
    monkeypatch.setattr(topk, "SORTED", 8)


@pytest.mark.parametrize("largest", [0, 1])
def test_the_best_of_parts_are_sorted_again(few, largest):
    program = kernel(model(2, 77, 2, largest=largest))
    x, _, places = program.params
    arrays = inputs(program, {})
    arrays[x][0, [3, 40, 76]] = np.nan
    arrays[x][1, [5, 70]] = np.inf, -np.inf
    interp.run(program, arrays)
    np.testing.assert_array_equal(arrays[places], expected(arrays[x], 2, largest, 1))


def test_a_part_with_fewer_elements_than_are_kept_gives_these(few):
    """All are below the zeros that stand for the missing one."""
    program = kernel(model(1, 17, 2))
    x, values, places = program.params
    arrays = inputs(program, {})
    arrays[x][0] = np.arange(17) - 50
    interp.run(program, arrays)
    assert arrays[places].tolist() == [[16, 15]]
    assert arrays[values].tolist() == [[-34, -35]]


def test_those_from_the_count_on_come_last(few):
    """Of 77 that were selected at most, 42 are there: greater ones behind them are none."""
    text = """(float[77] x, bool[77] c) => (float[2] v, int64[2] i) <int64[1] k = {2}>
        { some = Compress(x, c)
          v, i = TopK(some, k) }"""
    (program,) = (k for k in kernels(text) if "topk" in k.name.lower())
    x, count, values, places = program.params
    arrays = inputs(program, {})
    arrays[x] = np.arange(77, dtype=np.float32)
    arrays[count][...] = 42
    interp.run(program, arrays)
    assert arrays[places].tolist() == [41, 40]
    assert arrays[values].tolist() == [41, 40]


def test_all_of_a_long_row_is_sorted_by_one_block(few):
    program = kernel(model(1, 21, 21))
    x, _, places = program.params
    arrays = inputs(program, {})
    interp.run(program, arrays)
    np.testing.assert_array_equal(arrays[places], expected(arrays[x], 21, 1, 1))


@pytest.mark.representatives("pocl")
@pytest.mark.parametrize("machine", MACHINES)
def test_launches_are_right_on_each_machine(few, machine):
    of = MACHINES[machine]
    program = kernel(model(2, 21, 2))
    for sketch in families(program, of):
        made = to_launches(sketch.default().schedule.kernel, of.warp)
        check(program, made, inputs(program, {}), rtol=0)


def test_a_row_is_sorted_in_shared_memory_by_one_launch():
    program = kernel(model(2, 200, 5))
    best = families(program, GENERIC)[0]
    assert best.name == "phases"
    (launch,) = to_launches(best.default().schedule.kernel).launches
    assert launch.grid == (2, 1, 1) and launch.threads[0] == 256
    assert {b.name for b in launch.shared} == {"keys", "places", "dealt"}


@pytest.mark.slow
def test_a_vocabulary_is_sorted_by_many_blocks():
    program = kernel(model(1, 50_000, 40))
    best = families(program, H100)[0].default().schedule.kernel
    first, *_ = to_launches(best, 32).launches
    assert first.grid == (49, 1, 1) and first.threads[0] >= 256


def test_each_barrier_is_needed():
    program = kernel(model(1, 11, 3))
    made = to_launches(families(program, GENERIC)[0].default().schedule.kernel)
    count = len(barriers(made))
    assert count == 3
    for n in range(count):
        with pytest.raises(ExecutionError):
            launch_interp.run(without_barrier(made, n), inputs(program, {}))


@pytest.mark.slow
@pytest.mark.parametrize("case", [(3, 37, 5), (1, 100, 100), (2, 2100, 3)])
def test_on_pocl(case):
    program = kernel(model(*case))
    device = pocl()
    made = to_launches(families(program, GENERIC)[0].default().schedule.kernel)
    check(
        program,
        made,
        inputs(program, {}),
        lambda p, arrays: program_on(device, p, arrays),
        rtol=0,
    )
