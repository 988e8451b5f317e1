"""Maxima and minima: NaN is kept, and a step waits for nothing but the one before."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.targets.cpu.test_kernels import check, data
from tilewright.base.dtypes import float32
from tilewright.compute.reducer import reducer
from tilewright.expr.nodes import Buffer, var
from tilewright.loops.nodes import Kernel, Update, loop
from tilewright.targets.cpu.compile import assembly
from tilewright.targets.cpu.machine import machine


@pytest.mark.parametrize("name", ["max", "min"])
def test_steps_of_an_extremum_test_the_new_value(name: str) -> None:
    """NaN in what is read and in what was there; the chain from step to step is one instruction."""
    a, b = Buffer("a", (20, 8), float32), Buffer("b", (8,), float32)
    k, v = var("k"), var("v")
    step = Update((b,), ((v,),), (a[k, v],), reducer(name, float32))
    body = loop(k, 20, loop(v, 8, step, "vector"))
    x, start = data(a), data(b)
    x[7, 2] = x[19, 3] = start[5] = np.nan
    found = check([a, b], [b], body, a=x, b=start)
    assert np.isnan(found[b]).tolist() == [n in (2, 3, 5) for n in range(8)]
    text = assembly(Kernel("k", (a, b), (b,), body), machine("x86-64-v4"))
    (tested,) = re.findall(r"vcmpordps\s+%ymm\d+, (%ymm\d+), %k", text)
    [(kept, new)] = re.findall(rf"v{name}ps\s+(%ymm\d+), (%ymm\d+),", text)
    assert tested == new != kept
