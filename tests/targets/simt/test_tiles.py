"""Products in tiles are right: every form and size, by the interpreter of launches and on PoCL."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.loops.gpu_kernels import barriers, without_barrier
from tests.targets.cuda.running import load_counted
from tests.targets.opencl.running import run
from tests.targets.simt.products import (
    CASES,
    arrays,
    convolution,
    expected,
    interpreted,
    product,
    program,
    tiled,
)
from tilewright.loops.shared_memory import RaceError
from tilewright.targets.cuda.machine import machine
from tilewright.targets.simt.machine import GENERIC, MALI

SM80 = machine("sm_80").simt


# PoCL compiles shared memory and barriers for seconds, so it gets one of each form.
STAGED_ON_POCL = ("odd", "convolution")


def right(name, of, result):
    case = CASES[name]()
    p = program(tiled(case, of), of)
    given = arrays(p)
    want = expected(case, given)
    np.testing.assert_array_equal(result(p, given), want)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CASES)
def test_a_product_in_registers_is_right_on_pocl(name):
    right(name, MALI, lambda p, given: run(p, given)[p.outputs[0]])


@pytest.mark.parametrize("name", STAGED_ON_POCL)
def test_a_product_in_shared_memory_is_right_on_pocl(name):
    right(name, GENERIC, lambda p, given: run(p, given)[p.outputs[0]])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "name", ["thin", "tall", "followed", "turned", "float16", "int8"]
)
def test_a_product_in_shared_memory_has_no_race(name):
    right(name, SM80, interpreted)


@pytest.mark.parametrize(
    "name", [pytest.param("odd", marks=pytest.mark.slow), "followed"]
)
def test_the_next_tiles_are_fetched_while_some_are_used(name):
    """Threads meet once in a step, and before the first one."""
    case = CASES[name]()
    one, two = (program(tiled(case, SM80, stages=n), SM80) for n in (1, 2))
    assert [len(barriers(p)) for p in (one, two)] == [2, 2]
    shared = [sum(b.size for b in p.launches[0].shared) for p in (one, two)]
    assert shared[1] == 2 * shared[0]
    given = arrays(two)
    want = expected(case, given)
    np.testing.assert_array_equal(interpreted(two, given), want)


@pytest.mark.parametrize("number", range(2))
def test_each_barrier_between_two_stages_is_needed(number):
    p = program(tiled(CASES["odd"](), SM80, stages=2), SM80)
    with pytest.raises(RaceError):
        interpreted(without_barrier(p, number), arrays(p))


@pytest.mark.parametrize(
    ("case", "possible"),
    [
        (convolution(6, 7, 20, 3, 1, last=True), (1, 2, 3)),
        (convolution(5, 9, 18, 3, 1), (1, 2)),
    ],
    ids=["last", "first"],
)
def test_tiles_are_fetched_ahead_along_all_sums(case, possible):
    """Along the innermost sum there is one step."""
    stages = possible[-1]
    point = tiled(case, SM80, stages=stages)
    (found,) = (x for x in point.parameters if x.name == "mm.stages")
    assert found.candidates == possible
    p = program(point, SM80)
    given = arrays(p)
    want = expected(case, given)
    np.testing.assert_array_equal(interpreted(p, arrays(p)), want)
    _, (made,) = load_counted(p, machine("sm_80"), given)
    np.testing.assert_array_equal(made, want)
    for number in range(len(barriers(p))):
        with pytest.raises(RaceError):
            interpreted(without_barrier(p, number), arrays(p))


def test_one_step_has_nothing_to_fetch_ahead():
    point = tiled(product(32, 32, 8), SM80)
    (stages,) = (x for x in point.parameters if x.name == "mm.stages")
    assert stages.candidates == (1,)


def test_stages_are_for_machines_that_have_the_memory():
    for shared, possible in ((164, (1, 2, 3, 4)), (56, (1, 2, 3)), (24, (1,))):
        of = replace(SM80, shared=shared << 10)
        point = tiled(product(128, 128, 256), of, tile=(64, 64, 32, 16, 16))
        (stages,) = (x for x in point.parameters if x.name == "mm.stages")
        assert stages.candidates == possible
