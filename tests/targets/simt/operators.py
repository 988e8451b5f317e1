"""Kernels that operators give, as GPU schedules see them, and a check of their programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import onnx.parser

from tilewright.driver.compilation import optimize
from tilewright.driver.options import Options
from tilewright.driver.planning import make_plan
from tilewright.expr.nodes import Buffer
from tilewright.frontends.onnx import load
from tilewright.loops import interp, launch_interp
from tilewright.loops.launch import LaunchProgram
from tilewright.loops.nodes import Kernel
from tilewright.schedule import Schedule
from tilewright.schedule.space import Sketch
from tilewright.targets.base import Target
from tilewright.targets.opencl.target import OpenCL
from tilewright.targets.simt.machine import GENERIC, SimtMachine
from tilewright.targets.simt.schedules import sketches

HEAD: Final = '<ir_version: 8, opset_import: ["": 17]> m '
Arrays = dict[Buffer, np.ndarray[Any, Any]]


def kernels(text: str, of: SimtMachine | None = GENERIC) -> list[Kernel]:
    """The kernels that the operators of a model give on a machine; None: without blocks."""
    target = Target() if of is None else OpenCL(of)
    graph = load(onnx.parser.parse_model(HEAD + text))
    plan = make_plan(optimize(graph, Options(), target), target)
    found = (getattr(step, "kernel", None) for step in plan.steps)
    return [k for k in found if k is not None]


def kernel(text: str) -> Kernel:
    """The only one."""
    (found,) = kernels(text)
    return found


def families(k: Kernel, machine: SimtMachine) -> list[Sketch]:
    """The sketches of a kernel that an operator gives."""
    return sketches(k, (), machine)


def inputs(k: Kernel, limits: Mapping[str, int], seed: int = 0) -> Arrays:
    """Random small integers, as each dtype; by name of an input, below a limit; results of 7."""
    rng = np.random.default_rng(seed)
    made: Arrays = {}
    for b in k.params:
        most = limits.get(b.name)
        low, high = (-4, 5) if most is None else (-most, most)
        values = (
            np.full(b.shape, 7) if b in k.outputs else rng.integers(low, high, b.shape)
        )
        made[b] = np.asarray(values).astype(b.dtype.numpy)
    return made


Run = Callable[[LaunchProgram, Arrays], Any]


def check(
    before: Kernel,
    program: LaunchProgram,
    arrays: Arrays,
    run: Run = launch_interp.run,
    rtol: float = 1e-5,
) -> None:
    """A program computes what the kernel's loops do: exactly where rtol is 0."""
    wanted = {b: a.copy() for b, a in arrays.items()}
    interp.run(before, wanted)
    found = {b: a.copy() for b, a in arrays.items()}
    found = run(program, found) or found
    for b in before.outputs:
        np.testing.assert_allclose(
            found[b].astype("d"), wanted[b].astype("d"), rtol, err_msg=str(program)
        )


def traced(s: Schedule, step: str) -> list[tuple[Any, ...]]:
    """The arguments of each use of a primitive."""
    return [tuple(x.args) for x in s.trace.steps if x.primitive == step]
