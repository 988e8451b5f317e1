"""The functional simulator: what a program computes, and its errors."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.targets.npu.arithmetic import Arithmetic, Bounded, RoundedArithmetic
from tilewright.targets.npu.chains import STEP_LIMIT, Addresses, ChainStep, steps
from tilewright.targets.npu.errors import NPUError
from tilewright.targets.npu.isa import MEMORIES, DramRegion, NpuProgram
from tilewright.targets.npu.machine import NpuMachine

Values = NDArray[Any]


def run(
    program: NpuProgram,
    machine: NpuMachine,
    inputs: Sequence[Values],
    *,
    limit: int = STEP_LIMIT,
) -> list[Values]:
    """The outputs, float32, for one array per input.

    Raises NPUError naming the instruction for errors of `chains.steps` and for reads of elements
    that were never written; InputError for arrays of wrong shapes.
    """
    made = execute(
        program,
        machine,
        inputs,
        RoundedArithmetic(machine.number, machine.block),
        limit,
    )
    return [value[0] for value in made]


def bounds(
    program: NpuProgram, machine: NpuMachine, inputs: Sequence[Values]
) -> list[tuple[Values, Values]]:
    """For each output: the exact values, and how far from them `run` may be (`arithmetic`)."""
    made = execute(program, machine, inputs, Bounded(machine.number, machine.block))
    return [(value[0], value[1]) for value in made]


def execute(
    program: NpuProgram,
    machine: NpuMachine,
    inputs: Sequence[Values],
    arithmetic: Arithmetic,
    limit: int = STEP_LIMIT,
) -> list[Values]:
    """The outputs in this arithmetic, its parts first. Raises as `run`."""
    work = list(steps(program, machine, limit))
    state = _MachineState(arithmetic, {m: _Memory(arithmetic.parts) for m in MEMORIES})
    _load(program, machine, inputs, state)
    for step in work:
        state.step(step)
    dram = state.memories["dram"]
    return [dram.read(_region(r), f"output {r.name}") for r in program.outputs]


class _Memory:
    """Numbers, and which of them were ever written; it grows on demand."""

    def __init__(self, parts: int) -> None:
        self.values = np.zeros((parts, 0))
        self.written = np.zeros(0, bool)

    def read(self, at: Addresses, where: str) -> Values:
        """The numbers there. Raises NPUError if some were never written."""
        self._reach(int(at.max(initial=-1)))
        if not self.written[at].all():
            missing = int(at[~self.written[at]][0])
            raise NPUError(f"element {missing} is read before it is written", where=where,
                           hint="write it first")  # fmt: skip
        return self.values[:, at]

    def write(self, at: Addresses, values: Values) -> None:
        """These numbers there."""
        self._reach(int(at.max(initial=-1)))
        self.values[:, at] = values
        self.written[at] = True

    def _reach(self, address: int) -> None:
        more = address + 1 - self.written.size
        if more > 0:
            more = max(more, self.written.size)
            self.values = np.pad(self.values, ((0, 0), (0, more)))
            self.written = np.pad(self.written, (0, more))


@dataclass(slots=True)
class _MachineState:
    arithmetic: Arithmetic
    memories: dict[str, _Memory]
    value: Values | None = None

    def step(self, step: ChainStep) -> None:
        """One instruction."""
        op = step.instruction.op
        at = step.addresses
        if op == "end_chain":
            self.value = None
        elif op.endswith("_rd"):
            part = self._read(step, at)
            self.value = (
                part
                if self.value is None
                else np.concatenate([self.value, part], axis=1)
            )
        elif op.endswith("_wr"):
            assert at is not None and self.value is not None
            self.memories[step.instruction.memory].write(
                at, _fitted(self.value, at.shape)
            )
        else:
            assert self.value is not None
            operand = None if at is None else self._read(step, at)
            self.value = self.arithmetic.apply(op, self.value, operand)

    def _read(self, step: ChainStep, at: Addresses | None) -> Values:
        assert at is not None
        return self.memories[step.instruction.memory].read(at, step.where)


def _fitted(value: Values, shape: tuple[int, ...]) -> Values:
    """The first elements of a vector; a matrix with zeros to the right and below."""
    if len(shape) == 1:
        return value[:, : shape[0]]
    more = [(0, to - now) for to, now in zip(shape, value.shape[1:], strict=True)]
    return np.pad(value, [(0, 0), *more])


def _region(region: DramRegion) -> Addresses:
    count = prod(region.shape)
    return region.address + np.arange(count).reshape(region.shape)


def _load(
    program: NpuProgram,
    machine: NpuMachine,
    inputs: Sequence[Values],
    state: _MachineState,
) -> None:
    dram = state.memories["dram"]
    most = machine.elements("dram")
    shapes = [np.shape(x) for x in inputs]
    wanted = [r.shape for r in program.inputs]
    if shapes != wanted:
        raise InputError(
            f"expected arrays of the shapes {wanted}, found {shapes}",
            where="npu.run",
            hint="one array for each input of the program",
        )
    for region in (*program.inputs, *program.outputs):
        if not 0 <= region.address <= most - prod(region.shape):
            raise NPUError(f"it does not fit into the {most} elements of dram",
                           where=f"region {region.name}", hint="place it lower")  # fmt: skip
    for region, x in zip(program.inputs, inputs, strict=True):
        if np.size(x):
            dram.write(_region(region), state.arithmetic.enter(np.asarray(x)))
    for address, value in program.constants:
        if not 0 <= address < most:
            raise NPUError(f"dram has {most} elements", where=f".const dram[{address}]",
                           hint="place it lower")  # fmt: skip
        dram.write(np.asarray([address]), state.arithmetic.enter(np.asarray([value])))
