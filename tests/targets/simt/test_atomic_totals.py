"""Totals whose blocks add their parts atomically: what may be chosen, and when."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tests.targets.cuda.running import run_in
from tests.targets.opencl.running import pocl
from tests.targets.opencl.running import run as run_on_opencl
from tests.targets.simt.groups import Group, check, families, inputs, total
from tilewright.base.dtypes import DType, float32, float64, int32
from tilewright.base.errors import ScheduleError
from tilewright.loops import launch_interp
from tilewright.loops.launch import LaunchProgram
from tilewright.loops.nodes import Kernel
from tilewright.loops.passes.to_launches import to_launches
from tilewright.schedule.space import Sketch
from tilewright.targets import registry
from tilewright.targets.simt.machine import GENERIC, SimtMachine

ANY = replace(GENERIC, any_order=True)
PARTS = {"sum.parts": 8, "threads": 16}
ATOMIC = {**PARTS, "sum.combined": "atomic"}


@cache
def case(dtype: DType) -> Group:
    return total(1, 3000, dtype)


def sketch(dtype: DType, of: SimtMachine) -> Sketch:
    found = families(case(dtype), of)
    return next(s for s in found if s.name == "total")


def forms(dtype: DType, of: SimtMachine) -> tuple[object, ...]:
    point = sketch(dtype, of).at(PARTS)
    (found,) = (p.candidates for p in point.parameters if p.name == "sum.combined")
    return found


def atomic(dtype: DType, warp: int = 1) -> tuple[Kernel, LaunchProgram]:
    kernel = sketch(dtype, ANY).at(ATOMIC).schedule.kernel
    return case(dtype)[0], to_launches(kernel, warp)


@pytest.mark.parametrize(
    ("dtype", "of", "found"),
    [
        (float32, GENERIC, ("launch",)),
        (float32, ANY, ("launch", "atomic")),
        (int32, GENERIC, ("launch", "atomic")),
        (float64, ANY, ("launch",)),
    ],
)
def test_floats_are_added_in_any_order_only_where_that_is_allowed(dtype, of, found):
    assert forms(dtype, of) == found


def test_parts_in_one_order_are_the_default():
    point = sketch(float32, ANY).at(PARTS)
    assert point.values["sum.combined"] == "launch"
    assert "atomic" not in repr(to_launches(point.schedule.kernel))


@pytest.mark.parametrize("dtype", [float32, int32])
@pytest.mark.parametrize("warp", [1, 32])
def test_each_block_adds_its_part(dtype, warp):
    kernel, p = atomic(dtype, warp)
    assert repr(p).count("atomic y[] add=") == 1
    assert not p.workspace  # no parts, and no launch that combines them
    assert [launch.grid[0] for launch in p.launches] == [1, 8]
    for seed in range(2):
        check(kernel, p, inputs(kernel), partial(launch_interp.run, seed=seed))


@pytest.mark.parametrize("dtype", [float32, int32])
@pytest.mark.parametrize("run", [run_in, run_on_opencl], ids=["ptx", "opencl"])
def test_the_code_adds_all_parts(dtype, run):
    kernel, p = atomic(dtype, 32 if run is run_in else 1)
    check(kernel, p, inputs(kernel), run)


@pytest.mark.parametrize("name", ["cuda", "opencl", "amdgpu", "spirv"])
def test_the_mode_of_arithmetic_decides(name):
    assert not registry.target(name).simt.any_order
    assert not registry.target(name, exact=True).simt.any_order
    fast = registry.target(name, fast=True)
    assert fast.simt.any_order
    assert fast.key != registry.target(name).key


MODEL = """
<ir_version: 8, opset_import: ["": 17]>
sums (float[300, 100] x) => (float y) { y = ReduceSumSquare<keepdims=0>(x) }
"""


def test_a_model_on_a_device():
    pocl()
    x = np.random.default_rng(0).standard_normal((300, 100)).astype(np.float32)
    model = onnx.parser.parse_model(MODEL)
    name = "reducesumsquare"
    asked = {name: {f"{name}.parts": 2, f"{name}.combined": "atomic"}}
    how = {"target": "opencl", "cache": False, "schedules": asked}
    made = tw.compile(model, math="fast", **how)
    np.testing.assert_allclose(made(x), np.sum(x * x, dtype="d"), rtol=1e-5)
    with pytest.raises(ScheduleError, match="'atomic' is not possible here"):
        tw.compile(model, **how)
