"""Scans, sorts and the steps of a recurrence as PTX, run by the interpreter of PTX."""

from __future__ import annotations

import numpy as np
import pytest

from tests.targets.simt.groups import scan
from tests.targets.simt.operators import check, families, inputs, kernels
from tests.targets.simt.test_phases import LSTM
from tests.targets.simt.test_scans import H100, launches
from tests.targets.simt.test_sorts import model
from tilewright.loops.passes.to_launches import to_launches
from tilewright.targets.cuda.emit import ptx
from tilewright.targets.cuda.machine import machine
from tilewright.targets.cuda.target import code_of
from tilewright.testing.ptx.device import load

SM_90 = machine("sm_90")
OPERATORS = {"recurrence": LSTM, "sort": model(2, 13, 3)}


def interpreted(program, arrays):
    """What is in the buffers of a program after its PTX ran."""
    code = code_of(program, ptx(program, SM_90), SM_90).to_bytes()
    given = [np.ascontiguousarray(arrays[b]) for b in program.params]
    load(code)([x.reshape(-1).view(np.uint8) for x in given], False)
    return dict(zip(program.params, given, strict=True))


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_whose_threads_take_turns_are_right_as_ptx(name):
    k = kernels(OPERATORS[name])[-1]
    program = to_launches(families(k, H100)[0].default().schedule.kernel, 32)
    check(k, program, inputs(k, {}), interpreted)


def test_scans_are_right_as_ptx():
    group = scan(2, 37)
    program = launches(group, H100, parts=8)
    check(group[0], program, inputs(group[0], {}), interpreted)
