"""Products in tiles are right: every form and size, by the interpreter of launches and on PoCL."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.opencl.running import run
from tests.targets.simt.products import (
    CASES,
    arrays,
    expected,
    interpreted,
    program,
    tiled,
)
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


@pytest.mark.parametrize("name", CASES)
def test_a_product_in_registers_is_right_on_pocl(name):
    right(name, MALI, lambda p, given: run(p, given)[p.outputs[0]])


@pytest.mark.parametrize("name", STAGED_ON_POCL)
def test_a_product_in_shared_memory_is_right_on_pocl(name):
    right(name, GENERIC, lambda p, given: run(p, given)[p.outputs[0]])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["thin", "tall", "followed", "float16", "int8"])
def test_a_product_in_shared_memory_has_no_race(name):
    right(name, SM80, interpreted)
