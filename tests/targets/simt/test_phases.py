"""Kernels of operators whose threads take turns, and scatters into elements of one's own."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.loops.gpu_kernels import barriers, without_barrier
from tests.targets.opencl.running import pocl, program_on
from tests.targets.simt.operators import check, families, inputs, kernel, kernels
from tilewright.base.errors import ExecutionError
from tilewright.ir.node import postorder
from tilewright.loops import interp, launch_interp
from tilewright.loops.launch import AXIS
from tilewright.loops.nodes import Store
from tilewright.loops.passes.to_launches import to_launches
from tilewright.loops.walk import walk
from tilewright.targets.cuda.machine import machine as cuda
from tilewright.targets.cuda.target import Cuda
from tilewright.targets.simt.cost import LATENCY
from tilewright.targets.simt.machine import GENERIC, MALI, POCL

LSTM = """(float[3, 2, 4] x, float[1, 20, 4] w, float[1, 20, 5] r)
    => (float[3, 1, 2, 5] y) { y = LSTM<hidden_size = 5>(x, w, r) }"""
GRU = """(float[3, 2, 4] x, float[1, 15, 4] w, float[1, 15, 5] r)
    => (float[3, 1, 2, 5] y) { y = GRU<hidden_size = 5>(x, w, r) }"""
BOXES = """(float[1, 9, 4] b, float[1, 2, 9] s) => (int64[n, 3] y)
    <int64[1] k = {6}, float[1] i = {0.4}, float[1] t = {-3.5}>
    { y = NonMaxSuppression(b, s, k, i, t) }"""
ROWS = """(float[9, 33] x, int64[7, 1] j, float[7, 33] u) => (float[9, 33] y)
    { y = ScatterND(x, j, u) }"""
ADDED = """(float[9, 33] x, int64[7, 33] j, float[7, 33] u) => (float[9, 33] y)
    { y = ScatterElements<axis = 0, reduction = "add">(x, j, u) }"""
ALONG = """(float[33, 11] x, int64[33, 7] j, float[33, 7] u) => (float[33, 11] y)
    { y = ScatterElements<axis = 1>(x, j, u) }"""
LIMITS = {"j": 9}
TURNS = {"lstm": LSTM, "gru": GRU, "boxes": BOXES}
H100 = Cuda(cuda("sm_90"), exact=False).simt
MACHINES = {m.name: m for m in (GENERIC, MALI, POCL)} | {"H100": H100}
TINY = replace(GENERIC, block_threads=8, shared=100)


@cache
def steps(text):
    """The last kernel of an operator, which has its steps."""
    return kernels(text)[-1]


def phased(k, machine=GENERIC, **values):
    """Its launches by phases."""
    made = next(s for s in families(k, machine) if s.name == "phases").at(values)
    return to_launches(made.schedule.kernel, machine.warp)


@pytest.mark.covering(1)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("text", TURNS)
def test_turns_are_right_on_each_machine(text, machine):
    k = steps(TURNS[text])
    for sketch in families(k, MACHINES[machine]):
        made = sketch.default().schedule.kernel
        check(k, to_launches(made, MACHINES[machine].warp), inputs(k, {}))


RANDOM = [
    pytest.param(text, marks=pytest.mark.slow) if text == "boxes" else text
    for text in TURNS
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("text", RANDOM)
def test_each_point_is_right(text, seed):
    k = steps(TURNS[text])
    point = families(k, GENERIC)[0].random(random.Random(seed))
    check(k, to_launches(point.schedule.kernel), inputs(k, {}, seed))


def test_steps_of_a_recurrence_share_a_block():
    (launch,) = phased(steps(LSTM)).launches
    assert launch.grid == (1, 1, 1) and launch.threads[0] >= 16
    assert [b.name for b in launch.shared] == ["product"]


def test_what_does_not_fit_is_in_memory():
    k = steps(LSTM)
    program = phased(k, TINY)
    assert [b.name for b in program.workspace] == ["product"]
    check(k, program, inputs(k, {}))


def test_phases_are_the_default_where_they_pay():
    for machine in (GENERIC, H100):
        assert families(steps(LSTM), machine)[0].name == "phases"
    assert [s.name for s in families(kernel(ROWS), GENERIC)] == ["by element"]


@pytest.mark.covering(1)
@pytest.mark.parametrize("text", TURNS)
def test_each_barrier_is_needed(text):
    """Planted faults: without one of them, threads race or diverge."""
    k = steps(TURNS[text])
    program = phased(k)
    (launch,) = [x for x in program.launches if "barrier" in str(x)]
    assert launch.threads[0] > 1
    found = len(barriers(program))
    assert found >= 2
    for n in range(found):
        with pytest.raises(ExecutionError):
            launch_interp.run(without_barrier(program, n), inputs(k, {}))


def suppression(boxes, scores, operands="", attributes=""):
    """A NonMaxSuppression whose further operands are inputs."""
    names = ", ".join(x.split()[-1] for x in operands.split(", ") if operands)
    given = f", {operands}" if operands else ""
    read = f", {names}" if operands else ""
    return f"""(float{boxes} b, float{scores} s, int64[1] k{given}) => (int64[n, 3] y)
        {{ y = NonMaxSuppression{attributes}(b, s, k{read}) }}"""


CENTERS = "<center_point_box = 1>"
SUPPRESSIONS = {
    "limits": suppression([1, 9, 4], [1, 2, 9], "float[1] i, float[1] t"),
    "no limits": suppression([1, 9, 4], [1, 1, 9]),
    "no threshold": suppression([2, 5, 4], [2, 1, 5], "float[1] i", CENTERS),
    "one box": suppression([1, 1, 4], [1, 2, 1], "float[1] i, float[1] t"),
}


@pytest.mark.parametrize("name", SUPPRESSIONS)
def test_all_threads_choose_the_boxes_of_a_processor(name):
    """Also of equal scores, of scores that are no numbers, and with limits of all kinds."""
    k = steps(SUPPRESSIONS[name])
    (plain,) = kernels(SUPPRESSIONS[name], None)
    assert "struck" in str(k) and "struck" not in str(plain)
    found = set()
    for seed in range(25):
        rng = np.random.default_rng(seed)
        arrays = inputs(k, {}, seed)
        named = {b.name: a for b, a in arrays.items()}
        named["s"][rng.random(named["s"].shape) < 0.2] = np.nan
        named["k"][...] = seed % 8 - 1
        if "i" in named:
            named["i"][...] = rng.choice([0.0, 0.1, 0.4])
        if "t" in named:
            named["t"][...] = rng.choice([-5.0, -1.0, 0.5, 9.0, np.nan])
        copies = (a.copy() for a in arrays.values())
        wanted = dict(zip(plain.params, copies, strict=True))
        interp.run(plain, wanted)
        interp.run(k, arrays)
        for mine, theirs in zip(k.outputs, plain.outputs, strict=True):
            np.testing.assert_array_equal(arrays[mine], wanted[theirs])
        found.add(int(arrays[k.outputs[-1]]))
    assert len(found) > 2


def test_all_threads_compare_a_chosen_box_with_the_others():
    k = kernels(suppression([1, 40, 4], [1, 1, 40], "float[1] i, float[1] t"))[-1]
    program = phased(k, H100)
    launch = program.launches[-1]
    assert launch.threads[0] >= 32
    marked = [at for at in walk(launch.body) if "struck" in str(at.stmt).split("[")[0]]
    stores = [at.stmt for at in marked if isinstance(at.stmt, Store)]
    assert len(stores) == 2
    for s in stores:
        assert AXIS["threadIdx.x"] in set(postorder(s.index[0]))


@pytest.mark.parametrize("text", [ROWS, ADDED, ALONG])
def test_scatters_write_elements_of_their_own_in_order(text):
    """The same bits as in the program's order, since each thread keeps it."""
    k = kernel(text)
    limits = {b.name: 9 for b in k.inputs if b.dtype.is_int}
    for machine in (GENERIC, H100, TINY):
        (best, *_) = families(k, machine)
        assert best.name == "by element"
        program = to_launches(best.default().schedule.kernel, machine.warp)
        assert min(np.prod(x.grid) * np.prod(x.threads) for x in program.launches) >= 8
        for seed in range(3):
            check(k, program, inputs(k, limits, seed), rtol=0)


def scatter(shape, places, attributes, name="ScatterElements"):
    """A scatter of numbers at places of one or several dimensions."""
    points = [*places[:-1], *shape[places[-1] :]] if name == "ScatterND" else places
    return f"""(float{shape} x, int64{places} j, float{points} u) => (float{shape} y)
        {{ y = {name}<{attributes}>(x, j, u) }}"""


OWNED = {
    "row": scatter([40], [7], "axis = 0"),
    "sum of a row": scatter([40], [7], 'axis = 0, reduction = "add"'),
    "part of rows": scatter([4, 11], [3, 7], 'axis = 1, reduction = "mul"'),
    "numbers": scatter([40], [7, 1], 'reduction = "max"', "ScatterND"),
    "points": scatter([5, 9], [2, 3, 2], 'reduction = "add"', "ScatterND"),
    "short rows": scatter([9, 3], [7, 1], 'reduction = "none"', "ScatterND"),
}


@pytest.mark.parametrize("name", OWNED)
def test_elements_look_for_their_updates_in_order(name):
    """Several updates of an element are combined as on a processor, which applies them in order."""
    k = kernel(OWNED[name])
    (plain,) = kernels(OWNED[name], None)
    program = to_launches(families(k, GENERIC)[0].default().schedule.kernel)
    assert "mine" in str(program)
    x, j, _, y = k.params
    for seed in range(3):
        arrays = inputs(k, {j.name: min(x.shape)}, seed)
        check(k, program, arrays, rtol=0)
        wanted = dict(
            zip(plain.params, (a.copy() for a in arrays.values()), strict=True)
        )
        interp.run(plain, wanted)
        interp.run(k, arrays)
        np.testing.assert_array_equal(arrays[y], wanted[plain.params[-1]])


@pytest.mark.parametrize("name", ["row", "points"])
def test_an_index_out_of_range_is_found(name):
    k = kernel(OWNED[name])
    program = to_launches(families(k, GENERIC)[0].default().schedule.kernel)
    arrays = inputs(k, {})
    arrays[k.params[1]][...] = 3
    arrays[k.params[1]].flat[0] = 99
    with pytest.raises(ExecutionError) as caught:
        launch_interp.run(program, arrays)
    assert caught.value.code == "TW-INDEX"


@pytest.mark.parametrize("machine", ["generic", "pocl"])
def test_the_machine_says_how_many_elements_are_compared(machine):
    """As many as all its units compare while one write after another is waited for."""
    of = MACHINES[machine]
    most = int(of.units * of.rate * LATENCY)
    for size, compared in ((most, True), (most + 1, False)):
        (k,) = kernels(scatter([size], [7], "axis = 0"), of)
        assert ("mine" in str(k)) == compared


def test_a_warp_of_neighbors_has_columns():
    for columns, compared in ((31, True), (32, False)):
        k = kernel(scatter([9, columns], [7, columns], "axis = 0"))
        assert ("mine" in str(k)) == compared


@pytest.mark.representatives("text3")
@pytest.mark.parametrize("text", [LSTM, GRU, BOXES, ADDED])
def test_on_pocl(text):
    k = steps(text)
    limits = {b.name: 9 for b in k.inputs if b.dtype.is_int and b.shape != (1,)}
    device = pocl()
    program = to_launches(families(k, GENERIC)[0].default().schedule.kernel)
    check(k, program, inputs(k, limits), lambda p, a: program_on(device, p, a))
