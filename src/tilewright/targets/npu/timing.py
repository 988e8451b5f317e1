"""Timing: chains are issued in order and overlap where units and data allow.

Four units work in parallel: `dram` moves data on and off the chip, `move` between registers,
`vector` and `matrix` compute. A chain starts when its instructions are issued, its operands are
available, the data it overwrites has been read, and its units are free. Data stream through it: it
takes its slowest unit's time plus the latencies of all its parts, and occupies a unit only for that
unit's own time. Unit times follow from the machine's operators and its memories' bandwidths.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import field
from functools import lru_cache
from math import ceil, prod
from typing import NamedTuple

from tilewright.base.dataclass import dataclass
from tilewright.targets.npu.access_times import AccessTimes
from tilewright.targets.npu.chains import STEP_LIMIT, ChainStep, steps
from tilewright.targets.npu.footprint import footprint
from tilewright.targets.npu.isa import NpuInstruction, NpuProgram
from tilewright.targets.npu.machine import MachineOperator, NpuMachine

UNITS = ("dram", "move", "vector", "matrix")


@dataclass(frozen=True, slots=True)
class NpuTiming:
    """What a run takes. busy: cycles per unit. work: multiply-adds. energy: pJ.

    utilization: multiply-adds of the products, of those that the machine could have done.
    """

    cycles: int
    instructions: int
    chains: int
    busy: dict[str, int]
    dram_bytes: int
    work: int
    energy: float
    utilization: float

    def __str__(self) -> str:
        units = ", ".join(
            f"{u} {n / max(self.cycles, 1):.0%}" for u, n in self.busy.items()
        )
        return (
            f"{self.cycles} cycles, {self.instructions} instructions in {self.chains} chains; "
            f"busy: {units}; {self.dram_bytes} bytes to and from dram; {self.energy / 1000:.1f} nJ"
        )


def time(
    program: NpuProgram,
    machine: NpuMachine,
    limit: int = STEP_LIMIT,
    *,
    pinned: bool = False,
) -> NpuTiming:
    """The timing of a program, which does not depend on its data. Raises NPUError as `run`.

    pinned: matrices that stay in the registers are there already, as BrainWave keeps weights: the
    chains that only bring one of the inputs to a place where nothing else is written do not count.
    """
    chains = list(_chains(program, machine, limit))
    if pinned:
        fixed = _pinned(program, chains)
        chains = [chain for i, chain in enumerate(chains) if i not in fixed]
    clock = _Clock(machine, AccessTimes(s.instruction for c in chains for s in c))
    for chain in chains:
        clock.run(chain)
    return NpuTiming(
        clock.cycles,
        sum(map(len, chains)),
        len(chains),
        clock.busy,
        clock.dram_bytes,
        clock.work,
        clock.energy,
        clock.work / (machine.peak * max(clock.cycles, 1)),
    )


def _chains(
    program: NpuProgram, machine: NpuMachine, limit: int
) -> Iterator[list[ChainStep]]:
    chain: list[ChainStep] = []
    for step in steps(program, machine, limit):
        chain.append(step)
        if step.instruction.op == "end_chain":
            yield chain
            chain = []


def _pinned(program: NpuProgram, chains: list[list[ChainStep]]) -> set[int]:
    """The chains that bring a matrix of the inputs to its own place."""
    last = max((r.address + prod(r.shape) for r in program.inputs), default=0)
    writers: Counter[int] = Counter()
    loads = {}
    for index, chain in enumerate(chains):
        *reads, write, _ = chain
        if write.instruction.memory != "mrf" or write.addresses is None:
            continue
        writers.update(write.addresses.ravel().tolist())
        if all(_reads_input(step, last) for step in reads):
            loads[index] = write.addresses
    return {
        i
        for i, at in loads.items()
        if all(writers[a] == 1 for a in at.ravel().tolist())
    }


def _reads_input(step: ChainStep, last: int) -> bool:
    at = step.addresses
    own = step.instruction.op == "m_rd" and step.instruction.memory == "dram"
    return own and at is not None and int(at.max()) < last


@dataclass(slots=True)
class _Clock:
    """When units are free, and elements were last written and read."""

    machine: NpuMachine
    times: AccessTimes
    position: int = 0
    issued: int = 0
    cycles: int = 0
    work: int = 0
    energy: float = 0.0
    dram_bytes: int = 0
    free: dict[str, int] = field(default_factory=lambda: dict.fromkeys(UNITS, 0))
    busy: dict[str, int] = field(default_factory=lambda: dict.fromkeys(UNITS, 0))

    def run(self, chain: list[ChainStep]) -> None:
        """One chain."""
        takes = dict.fromkeys(UNITS, 0)
        latency = 0
        for step in chain:
            cost = _cost(step.instruction, step.operator, self.machine)
            self.issued += cost.issue
            self.energy += cost.energy
            self.work += cost.work
            self.dram_bytes += cost.dram_bytes
            latency += cost.latency
            takes[cost.unit] += cost.interval
        used = [u for u in UNITS if takes[u]]
        count = len([step for step in chain if step.instruction.memory])
        operands = self.times.accesses[self.position : self.position + count]
        self.position += count
        ready = [self.times.ready(operand) for operand in operands]
        start = max([self.issued, *ready, *[self.free[u] for u in used]])
        end = start + max(takes.values()) + latency
        for unit in used:
            self.free[unit] = start + takes[unit]
            self.busy[unit] += takes[unit]
        for operand in operands:
            self.times.done(operand, end)
        self.cycles = max(self.cycles, end)


class _Cost(NamedTuple):
    """Cycles to issue an instruction, cycles of its unit, and its latency; pJ and operations."""

    issue: int
    unit: str
    interval: int
    latency: int
    energy: float
    work: int = 0
    dram_bytes: int = 0


@lru_cache(maxsize=1 << 14)
def _cost(i: NpuInstruction, op: MachineOperator | None, machine: NpuMachine) -> _Cost:
    """What an instruction takes. op: the operator of the machine that it uses."""
    if op is not None:
        work = op.work if op.name in ("MVMul", "MMMul") else 0
        return _Cost(op.issue, op.unit, op.interval, op.latency, op.energy, work)
    if not i.memory:
        return _Cost(0, UNITS[0], 0, 0, 0.0)
    # One element that is read again and again crosses the border once.
    if i.step:
        count = footprint(i).size
    else:
        count = 1
    moved = count * machine.bytes
    memory = machine.memory(i.memory)
    out = i.memory == "dram"
    return _Cost(
        machine.transfer,
        "dram" if out else "move",
        ceil(moved / memory.bandwidth),
        memory.latency,
        moved * memory.energy,
        dram_bytes=moved if out else 0,
    )
