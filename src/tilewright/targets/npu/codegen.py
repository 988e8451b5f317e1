"""Generating instructions from a derived Lift program.

The program is evaluated on addresses (evaluate.py), its tasks are ordered and grouped into chains
(order.py); here registers are allocated for every chain, its operands are moved to where its
operators can read them, and its instructions are emitted. A result with `toChip` is kept in vector
registers until its last read, any other in DRAM; one with `toOutput` is written to its place in the
output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dataclass import dataclass
from tilewright.lift.nodes import Lambda
from tilewright.targets.npu.errors import CAPACITY, NPUError
from tilewright.targets.npu.evaluate import evaluate
from tilewright.targets.npu.isa import OPCODES, DramRegion, NpuInstruction, NpuProgram
from tilewright.targets.npu.machine import NpuMachine
from tilewright.targets.npu.memory import Allocator, Registers
from tilewright.targets.npu.order import Link, by_level, is_matrix, linked, ordered
from tilewright.targets.npu.segments import Address, rows, runs
from tilewright.targets.npu.tasks import (
    OFFSET,
    SHIFT,
    Addresses,
    Evaluated,
    NpuTask,
    NpuValue,
    TaskOperand,
    values_in,
)
from tilewright.targets.npu.timing import NpuTiming, time
from tilewright.targets.npu.unread import extents, simplified

# What a task writes where: the memories as one space of addresses.
_VRF = 1 << 48


@dataclass(frozen=True, slots=True)
class Assembled:
    """A program of the machine, and its resources."""

    program: NpuProgram
    timing: NpuTiming


def generate(program: Lambda, machine: NpuMachine) -> NpuProgram:
    """The program of the machine.

    Raises NPUError, with the place, for an operator that the machine lacks at that size, for code
    outside of operators, and (TW-NPU-CAPACITY) for values that do not fit on the chip.
    """
    return assemble(evaluate(program), machine).program


def assemble(made: Evaluated, machine: NpuMachine) -> Assembled:
    """Tasks whose results have their memories as a program.

    They are ordered by level, so that independent parts overlap; if that runs short of vector
    registers, the faster of this order and the order of use, which keeps few results alive. Raises
    NPUError as `generate`.
    """
    for task in made.tasks:
        if machine.find(task.operator, task.sizes) is None:
            raise NPUError(
                f"{machine.name} has no such operator",
                where=task.title,
                hint=f"sizes of {task.operator}: {machine.sizes(task.operator) or 'none'}",
            )
    simplified(made)
    tasks = ordered(made)
    read = _read_in(made, tasks)
    deep = linked(made, tasks)
    wide = by_level(deep)
    found, refused = [], None
    for chains in (deep,) if deep == wide else (wide, deep):
        generator = _Generator(made, machine, read)
        try:
            program = generator.program(chains)
        except NPUError as error:
            if error.code != CAPACITY:
                raise
            refused = error
            continue
        found.append(Assembled(program, time(program, machine)))
        if not generator.vectors.short:
            break
    if not found:
        assert refused is not None
        raise refused
    return min(found, key=lambda one: one.timing.cycles)


@dataclass(frozen=True, slots=True)
class _Read:
    """What tasks and outputs read: how many elements of each value, and how often values and
    operands (by their keys)."""

    elements: NDArray[np.int64]
    values: Counter[int]
    operands: Counter[bytes]


def _read_in(made: Evaluated, tasks: list[NpuTask]) -> _Read:
    values = Counter(v for out in made.outputs for v in values_in(out))
    values.update(v for task in tasks for v in task.reads)
    operands = Counter(operand.key for task in tasks for operand in task.operands)
    return _Read(extents(made), values, operands)


@dataclass(slots=True)
class _Generator:
    made: Evaluated
    machine: NpuMachine
    read: _Read
    code: list[NpuInstruction] = field(default_factory=list)
    notes: list[tuple[int, str]] = field(default_factory=list)
    base: dict[int, int] = field(default_factory=dict)
    bases: Addresses = field(init=False)
    dram: int = 0
    inputs: int = 0
    uses: Counter[int] = field(init=False)
    vectors: Registers = field(init=False)
    matrices: Registers = field(init=False)

    def __post_init__(self) -> None:
        self.bases = np.zeros(len(self.made.values), np.int64)
        self.uses = self.read.values.copy()
        of = self.machine.elements
        self.vectors = Registers(Allocator("vrf", of("vrf")))
        self.matrices = Registers(Allocator("mrf", of("mrf")))

    def program(self, chains: list[list[Link]]) -> NpuProgram:
        """All of it, chain by chain."""
        inputs = [self._region(v.name, v.shape or (1,), v) for v in self.made.inputs]
        self.inputs = self.dram
        constants = self._constants()
        outputs = self._outputs()
        for chain in chains:
            self._chain(chain)
        for region, out in zip(outputs, self.made.outputs, strict=True):
            self._copy_out(region, out.ravel())
        return NpuProgram(
            tuple(self.code),
            tuple(inputs),
            tuple(outputs),
            constants,
            tuple(self.notes),
        )

    # -- DRAM

    def _region(
        self, name: str, shape: tuple[int, ...], value: NpuValue | None = None
    ) -> DramRegion:
        region = DramRegion(name, self.dram, shape)
        self.dram += int(np.prod(shape))
        if value is not None:
            self._put(value, region.address)
        return region

    def _in_dram(self, value: NpuValue) -> None:
        self._put(value, self.dram)
        self.dram += value.size

    def _constants(self) -> tuple[tuple[int, float], ...]:
        """The numbers that are read, and their places."""
        found = [(v.constant, v) for v in self.made.values if v.constant is not None]
        used = [(x, v) for x, v in found if self.read.values[v.number]]
        for _, v in sorted(used, key=lambda pair: (pair[0], pair[1].name)):
            self._in_dram(v)
        return tuple((self.base[v.number], x) for x, v in used)

    def _outputs(self) -> list[DramRegion]:
        """Regions, and the results that are made right in them."""
        regions = []
        for i, out in enumerate(self.made.outputs):
            region = self._region(f"out_{i}" if i else "out", out.shape or (1,))
            regions.append(region)
            flat = out.ravel()
            for number in values_in(flat):
                value = self.made.values[number]
                at = np.flatnonzero(flat >> SHIFT == number)
                first = np.array_equal(flat[at], value.addresses.ravel()[: at.size])
                dense = first and at[-1] - at[0] + 1 == at.size == self._stored(value)
                if dense and value.space == "output" and number not in self.base:
                    self._put(value, region.address + int(at[0]))
        return regions

    def _copy_out(self, region: DramRegion, out: Addresses) -> None:
        """What is not in its place yet."""
        to = region.address + np.arange(out.size)
        now = self._physical(out)
        wrong = np.flatnonzero(now != to)
        for part in np.split(wrong, np.flatnonzero(np.diff(wrong) > 1) + 1):
            if part.size:
                self._move(
                    out[part], Address("dram", int(to[part[0]])), "copy to the output"
                )

    # -- chains

    def _chain(self, chain: list[Link]) -> None:
        first = chain[0]
        last = chain[-1]
        title = " ".join(link.task.title for link in chain)
        sides = [self._side(link) for link in chain]
        start = first.task.operands[first.flow]
        reads = (
            self._read_matrix(start.addresses)
            if is_matrix(first.task)
            else self._read_vector(start)
        )
        self.notes.append((len(self.code), title))
        body = [
            self._operation(link.task, side)
            for link, side in zip(chain, sides, strict=True)
        ]
        self._release([number for link in chain for number in link.task.reads])
        self.code += [
            *reads,
            *body,
            self._write(last.task),
            NpuInstruction("end_chain"),
        ]
        self.vectors.pinned.clear()
        self.matrices.pinned.clear()

    def _operation(self, task: NpuTask, side: Address | None) -> NpuInstruction:
        op = OPCODES[task.operator]
        if side is None:
            return NpuInstruction(op)
        if side.memory == "mrf":
            rows_, columns = task.sizes[-2:]
            return NpuInstruction(op, "mrf", side.address, rows=rows_, columns=columns)
        return NpuInstruction(op, "vrf", side.address, n=task.sizes[-1], step=side.step)

    def _write(self, task: NpuTask) -> NpuInstruction:
        value = task.result
        place = self._place(value, task.title)
        if len(value.shape) == 2:
            r, c = value.shape
            return NpuInstruction(
                "m_wr", place.memory, place.address, rows=r, columns=c
            )
        return NpuInstruction(
            "v_wr", place.memory, place.address, n=self._stored(value)
        )

    def _stored(self, value: NpuValue) -> int:
        """How many elements of a result are written: those that are read later."""
        return (
            int(self.read.elements[value.number])
            if len(value.shape) == 1
            else value.size
        )

    def _place(self, value: NpuValue, where: str) -> Address:
        """The destination of a result."""
        if value.space == "chip":
            address = self.vectors.take(self._stored(value), f"{where} -> {value.name}")
            self._put(value, _VRF + address)
            return Address("vrf", address)
        if value.number not in self.base:
            self._in_dram(value)
        return Address("dram", self.base[value.number])

    def _release(self, numbers: list[int]) -> None:
        """Registers of values that have been read for the last time."""
        for number in numbers:
            self.uses[number] -= 1
            at = self.base.get(number, 0)
            if not self.uses[number] and at >= _VRF:
                self.vectors.allocator.free(at - _VRF)

    # -- operands

    def _physical(self, addresses: Addresses) -> Addresses:
        return np.asarray(self.bases[addresses >> SHIFT] + (addresses & OFFSET))

    def _put(self, value: NpuValue, address: int) -> None:
        """Mark a value as available."""
        self.base[value.number] = address
        if value.number >= self.bases.size:
            self.bases = np.pad(self.bases, (0, value.number + 1))
        self.bases[value.number] = address

    def _side(self, link: Link) -> Address | None:
        """The operand next to the chain's value, in registers where its operator reads it."""
        task = link.task
        if len(task.operands) == 1:
            return None
        operand = task.operands[1 - link.flow]
        if operand.addresses.ndim == 2:
            return self._matrix(operand, task)
        (run, *more) = runs(self._physical(operand.addresses))
        if not more and run.start >= _VRF:
            return Address("vrf", run.start - _VRF, run.step)
        return self._staged(operand, task.title)

    def _staged(self, operand: TaskOperand, where: str) -> Address:
        """A vector in the registers, brought there if it is not."""
        size = operand.addresses.size
        place, known = self.vectors.copy(operand.key, size, where)
        if not known:
            to = Address("vrf", place)
            self._move(operand.addresses, to, f"operand of {where}")
        return Address("vrf", place)

    def _matrix(self, operand: TaskOperand, task: NpuTask) -> Address:
        """A tile in the matrix registers."""
        size = operand.addresses.size
        place, known = self.matrices.copy(operand.key, size, task.title)
        if not known:
            loads = self._loads(operand)
            self.notes.append((len(self.code), f"matrix of {task.title}"))
            r, c = operand.addresses.shape
            write = NpuInstruction("m_wr", "mrf", place, rows=r, columns=c)
            self.code += [*loads, write, NpuInstruction("end_chain")]
        return Address("mrf", place)

    def _loads(self, operand: TaskOperand) -> Sequence[NpuInstruction]:
        """The reads of a tile. Zeros to the right and below are not read.

        Inputs are at the same places in all programs of a form, so their reads are kept.
        """
        if operand.loads is not None:
            return operand.loads
        tile = self._without_zeros(operand.addresses)
        before = len(self.code)
        loads = tuple(self._read_matrix(tile))
        given = operand.fixed and int(self._physical(tile).max()) < self.inputs
        if given and len(self.code) == before:
            operand.loads = loads
        return loads

    def _without_zeros(self, operand: Addresses) -> Addresses:
        zeros = [v.number for v in self.made.values if v.constant == 0.0]
        inside = ~np.isin(operand >> SHIFT, zeros)
        r = np.flatnonzero(inside.any(axis=1))
        c = np.flatnonzero(inside.any(axis=0))
        if r.size and inside[: r[-1] + 1, : c[-1] + 1].all():
            return operand[: r[-1] + 1, : c[-1] + 1]
        return operand

    def _read_vector(self, operand: TaskOperand) -> list[NpuInstruction]:
        """The reads of the value that a chain begins with; copied if it is read again."""
        found = list(runs(self._physical(operand.addresses)))
        again = self.read.operands[operand.key] > 1
        size = operand.addresses.size
        if found[0].start < _VRF and size > 1 and again:
            place = self._staged(operand, "the chains that read it")
            return [NpuInstruction("v_rd", "vrf", place.address, n=size)]
        return [_read(run.start, n=run.count, step=run.step) for run in found]

    def _read_matrix(self, operand: Addresses) -> list[NpuInstruction]:
        straight = operand
        physical = self._physical(operand)
        steps = np.diff(physical)
        crooked = np.flatnonzero((steps != steps[:, :1]).any(axis=1))
        if crooked.size:
            straight = np.array(operand)
            for i in crooked:
                straight[i] = self._straightened(operand[i])
            physical = self._physical(straight)
        return [
            _read(
                b.start,
                "m_rd",
                rows=b.rows,
                columns=b.columns,
                step=b.step,
                across=b.across,
            )
            for b in rows(physical)
        ]

    def _straightened(self, row: Addresses) -> Addresses:
        """A row that is in several places, copied to one: its own value in DRAM."""
        value = self.made.new("row", (row.size,), "dram")
        self._in_dram(value)
        self._move(row, Address("dram", self.base[value.number]), "row of a matrix")
        return value.addresses

    def _move(self, operand: Addresses, to: Address, note: str) -> None:
        reads = [
            _read(r.start, n=r.count, step=r.step)
            for r in runs(self._physical(operand))
        ]
        write = NpuInstruction("v_wr", to.memory, to.address, n=operand.size)
        self.notes.append((len(self.code), note))
        self.code += [*reads, write, NpuInstruction("end_chain")]


def _read(physical: int, op: str = "v_rd", **fields: int) -> NpuInstruction:
    on_chip = physical >= _VRF
    return NpuInstruction(
        op, "vrf" if on_chip else "dram", physical - _VRF * on_chip, **fields
    )
