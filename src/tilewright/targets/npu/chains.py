"""The effect of each instruction on the value of its chain, checked before a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dataclass import dataclass
from tilewright.targets.npu.errors import NPUError
from tilewright.targets.npu.footprint import footprint
from tilewright.targets.npu.isa import FORMS, OPERATORS, NpuInstruction, NpuProgram
from tilewright.targets.npu.machine import MachineOperator, NpuMachine

Addresses = NDArray[np.int64]
Shape = tuple[int, ...]
STEP_LIMIT = 10_000_000


class ChainStep(NamedTuple):
    """An instruction at work. operator: of the machine, that it uses. shape: of the chain's value
    after it."""

    number: int
    instruction: NpuInstruction
    operator: MachineOperator | None
    shape: Shape

    @property
    def addresses(self) -> Addresses | None:
        """Of its operand; one dimension for vectors, two for matrices."""
        i = self.instruction
        if i.memory:
            return footprint(i).addresses
        return None

    @property
    def where(self) -> str:
        """The instruction, for errors."""
        return where(self.number, self.instruction)


def where(index: int, instruction: NpuInstruction) -> str:
    """`instruction 12: vv_add vrf[0] n=32`."""
    return f"instruction {index}: {instruction}"


def steps(
    program: NpuProgram, machine: NpuMachine, limit: int = STEP_LIMIT
) -> Iterator[ChainStep]:
    """Every instruction with the shape of its chain's value.

    Raises NPUError naming the instruction: for an operator or size that the machine does not have,
    operands that do not fit, addresses beyond a memory, an instruction out of its place in a chain,
    a chain that does not end, or more than `limit` instructions.
    """
    shape: Shape = ()
    phase = "start"
    for index, instruction in enumerate(program.instructions):
        if index >= limit:
            raise NPUError(
                f"more than {limit} instructions", where=where(index, instruction)
            )
        try:
            phase = _phase(phase, instruction)
            shape, operator = _effect(instruction, shape, machine)
        except _Fault as fault:
            at = where(index, instruction)
            raise NPUError(fault.message, where=at, hint=fault.hint) from None
        yield ChainStep(index, instruction, operator, shape)
    if phase != "start":
        last = len(program.instructions) - 1
        raise NPUError(
            "the last chain does not end",
            where=where(last, program.instructions[last]),
            hint="put end_chain after it",
        )


@dataclass(frozen=True)
class _Fault(Exception):
    message: str
    hint: str


# What an instruction does, and what may follow: a chain reads, works, writes, ends.
_PHASES = {
    op: {"rd": "read", "wr": "write"}.get(op.partition("_")[2], "work") for op in FORMS
}
_ORDER = {"start": 0, "read": 1, "work": 2, "write": 3}


def _phase(before: str, instruction: NpuInstruction) -> str:
    op = instruction.op
    if op not in FORMS:
        raise _Fault(f"unknown opcode {op!r}", f"known: {', '.join(FORMS)}")
    if op == "end_chain":
        if before != "write":
            raise _Fault("the chain writes nothing", "end it after v_wr or m_wr")
        return "start"
    phase = _PHASES[op]
    if before == "start" and phase != "read":
        raise _Fault("a chain begins with what it reads", "begin it with v_rd or m_rd")
    if _ORDER[phase] < _ORDER[before]:
        raise _Fault(
            f"{op} cannot follow a {before} in a chain", "end_chain comes first"
        )
    return phase


@lru_cache(maxsize=1 << 14)
def _effect(
    instruction: NpuInstruction, shape: Shape, machine: NpuMachine
) -> tuple[Shape, MachineOperator | None]:
    """The shape of the chain's value after it, and the operator that it uses. Raises _Fault."""
    _check(instruction, machine)
    return _RULES[instruction.op](instruction, shape, machine)


def _check(i: NpuInstruction, machine: NpuMachine) -> None:
    """Raises _Fault for an operand that is not in its memory."""
    if not i.memory:
        return
    if i.memory not in FORMS[i.op].memories:
        raise _Fault(f"{i.op} cannot use {i.memory!r}", f"use {FORMS[i.op].memories}")
    place = footprint(i)
    most = machine.elements(i.memory)
    if min(place.axes)[0] < 1:
        raise _Fault("a size below 1", "sizes count elements")
    if place.low < 0 or place.high > most:
        raise _Fault(
            f"{i.memory} has {most} elements; {place.low} to {place.high - 1} are used",
            "use smaller addresses",
        )
    if place.size > most:
        raise _Fault(
            f"{place.size} elements of {i.memory}, which has {most}",
            "repeat fewer of them",
        )


Rule = Callable[
    [NpuInstruction, Shape, NpuMachine], tuple[Shape, MachineOperator | None]
]


def _reads_vector(
    i: NpuInstruction, shape: Shape, machine: NpuMachine
) -> tuple[Shape, None]:
    _require(
        len(shape) < 2,
        "a vector cannot follow a matrix",
        "read both in separate chains",
    )
    return ((shape[0] if shape else 0) + i.n,), None


def _reads_matrix(
    i: NpuInstruction, shape: Shape, machine: NpuMachine
) -> tuple[Shape, None]:
    _require(
        not shape or shape[1:] == (i.columns,),
        f"rows of {i.columns} cannot follow a value of {show(shape)}",
        "all rows of a matrix have one length",
    )
    return ((shape[0] if shape else 0) + i.rows, i.columns), None


def _pointwise(
    i: NpuInstruction, shape: Shape, machine: NpuMachine
) -> tuple[Shape, MachineOperator]:
    if i.memory:
        _expect((i.n,), shape)
    return shape, _operator(i.op, shape, machine, 1)


def _reduces(
    i: NpuInstruction, shape: Shape, machine: NpuMachine
) -> tuple[Shape, MachineOperator]:
    return (1,), _operator(i.op, shape, machine, 1)


def _mv_mul(
    i: NpuInstruction, shape: Shape, machine: NpuMachine
) -> tuple[Shape, MachineOperator]:
    _expect((i.columns,), shape)
    return (i.rows,), _operator(i.op, (i.rows, i.columns), machine, 2)


def _mv_add(
    i: NpuInstruction, shape: Shape, machine: NpuMachine
) -> tuple[Shape, MachineOperator]:
    _expect((shape[0] if shape else 0, i.n), shape)
    return shape, _operator(i.op, shape, machine, 2)


def _mm_mul(
    i: NpuInstruction, shape: Shape, machine: NpuMachine
) -> tuple[Shape, MachineOperator]:
    _require(
        shape[1:] == (i.rows,),
        f"a value of {show(shape)} times {i.rows} rows",
        "they differ",
    )
    return (shape[0], i.columns), _operator(i.op, (*shape, i.columns), machine, 3)


def _writes_vector(
    i: NpuInstruction, shape: Shape, machine: NpuMachine
) -> tuple[Shape, None]:
    _require(
        len(shape) == 1 and i.n <= shape[0],
        f"{i.n} elements of a value of {show(shape)} are written",
        "it cannot use more than its own",
    )
    return shape, None


def _writes_matrix(
    i: NpuInstruction, shape: Shape, machine: NpuMachine
) -> tuple[Shape, None]:
    _require(
        len(shape) == 2 and shape[0] <= i.rows and shape[1] <= i.columns,
        f"a value of {show(shape)} is written as {i.rows}x{i.columns}",
        "a tile is as large as the matrix, or larger",
    )
    return shape, None


_RULES: dict[str, Rule] = {
    "v_rd": _reads_vector,
    "m_rd": _reads_matrix,
    "v_wr": _writes_vector,
    "m_wr": _writes_matrix,
    "end_chain": lambda i, shape, machine: ((), None),
    **dict.fromkeys(OPERATORS, _pointwise),
    **dict.fromkeys(("v_sum", "v_top"), _reduces),
    "mv_mul": _mv_mul,
    "mv_add": _mv_add,
    "mm_mul": _mm_mul,
}


def _operator(
    op: str, sizes: Shape, machine: NpuMachine, count: int
) -> MachineOperator:
    name = OPERATORS[op]
    found = machine.find(name, sizes)
    if found is None or len(sizes) != count:
        has = ", ".join(map(show, machine.sizes(name))) or "none"
        raise _Fault(f"{machine.name} has no {name} of {show(sizes)}", f"sizes: {has}")
    return found


def _expect(wanted: Shape, shape: Shape) -> None:
    if wanted != shape:
        raise _Fault(
            f"expected a value of {show(wanted)}, found {show(shape)}",
            "sizes are those of the chain's value",
        )


def _require(condition: bool, message: str, hint: str) -> None:
    if not condition:
        raise _Fault(message, hint)


def show(shape: Shape) -> str:
    """`128x64`; a size, or a shape."""
    return "x".join(map(str, shape)) or "nothing"
