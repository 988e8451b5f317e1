"""Programs of launches as PTX, run by the interpreter of PTX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.expr.nodes import Buffer
from tilewright.loops.launch import LaunchProgram
from tilewright.loops.parser import parse_program
from tilewright.targets.cuda.emit import ptx
from tilewright.targets.cuda.machine import CudaMachine, machine
from tilewright.targets.cuda.target import code_of
from tilewright.testing.ptx.device import load
from tilewright.testing.ptx.traffic import WarpTraffic

Array = np.ndarray[Any, Any]
SM80 = machine("sm_80")


def program(text: str) -> LaunchProgram:
    """A program from its text."""
    return parse_program(text.strip("\n").split("\n"))


def run(p: LaunchProgram, inputs: Sequence[Array], name: str = "sm_80") -> list[Array]:
    """The outputs of a program, which are its last parameters."""
    of = machine(name)
    code = code_of(p, ptx(p, of, contract=False), of)
    outputs = [np.zeros(b.shape, b.dtype.numpy) for b in p.params[len(inputs) :]]
    flat = [a.reshape(-1).view(np.uint8).copy() for a in (*inputs, *outputs)]
    load(code.to_bytes())(flat, False)
    made = zip(flat[len(inputs) :], outputs, strict=True)
    return [a.view(o.dtype).reshape(o.shape) for a, o in made]


def run_in(p: LaunchProgram, arrays: dict[Buffer, Array], name: str = "sm_80") -> None:
    """Run a program on the arrays of its parameters, in place."""
    of = machine(name)
    code = code_of(p, ptx(p, of, contract=False), of)
    flat = [arrays[b].reshape(-1).view(np.uint8).copy() for b in p.params]
    load(code.to_bytes())(flat, False)
    for b, found in zip(p.params, flat, strict=True):
        arrays[b] = found.view(b.dtype.numpy).reshape(b.shape)


def load_counted(
    p: LaunchProgram, of: CudaMachine, given: Mapping[Buffer, Array] | None = None
) -> tuple[WarpTraffic, list[Array]]:
    """What a program asks of memory, and its results. given: of each parameter, zeros if None."""
    traffic = WarpTraffic()
    code = code_of(p, ptx(p, of), of).to_bytes()
    held = {b: np.zeros(b.shape, b.dtype.numpy) for b in p.params} | dict(given or {})
    flat = [held[b].reshape(-1).view(np.uint8).copy() for b in p.params]
    load(code, traffic)(flat, False)
    made = dict(zip(p.params, flat, strict=True))
    return traffic, [made[b].view(b.dtype.numpy).reshape(b.shape) for b in p.outputs]
