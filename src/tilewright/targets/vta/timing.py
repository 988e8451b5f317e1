"""The timing simulator: three concurrent modules, token queues, a shared bus to DRAM.

An instruction starts when its module is free and its tokens are there. It takes `start` cycles,
and then a GEMM or ALU instruction one interval per step; a transfer waits `dram_latency` cycles
for its first byte, and all transfers under way share the bus equally, its bytes back to back. At
the end tokens are given. What is computed does not depend on time if tokens order it (a strict
run proves that), so memory and counters are the functional simulator's.
"""

from __future__ import annotations

from collections import deque
from dataclasses import fields
from math import lcm

from tilewright.base.dataclass import dataclass
from tilewright.base.numbers import whole
from tilewright.targets.vta.config import VTAConfig
from tilewright.targets.vta.errors import VTAError
from tilewright.targets.vta.fields import DEFAULT
from tilewright.targets.vta.functional import STEP_LIMIT, Counters, FunctionalSimulator
from tilewright.targets.vta.isa import Gemm, Micro, Transfer
from tilewright.targets.vta.order import dealt
from tilewright.targets.vta.program import InstructionStream
from tilewright.targets.vta.sram import dram_bytes
from tilewright.targets.vta.stages import QUEUES, VtaModule
from tilewright.targets.vta.timeline import InstructionSpan, VtaTiming

_SHARES = lcm(
    1, 2, 3
)  # of a byte, so that two or three transfers get whole numbers of them


@dataclass(frozen=True, slots=True)
class TimingParameters:
    """Cycles and bytes per cycle; the defaults are the published figures.

    gemm_interval, alu_interval: cycles from one step to the next. start: cycles before the first
    step or request of an instruction. dram_latency: cycles from a request to its first byte.
    dram_bytes_per_cycle: of all modules together.
    """

    gemm_interval: int = 1
    alu_interval: int = 1
    start: int = 10
    dram_latency: int = 64
    dram_bytes_per_cycle: int = 8

    def __post_init__(self) -> None:
        for f in fields(self):
            value, least = (
                getattr(self, f.name),
                0 if f.name in ("start", "dram_latency") else 1,
            )
            number = whole(value, least)
            if number is None:
                raise VTAError(
                    f"{f.name} is {value!r}, expected a whole number from {least} on",
                    where="TimingParameters",
                )
            object.__setattr__(self, f.name, number)


class TimingSimulator:
    """Executes streams as FunctionalSimulator does, and says how long they take."""

    def __init__(
        self,
        config: VTAConfig = DEFAULT,
        timing: TimingParameters | None = None,
        *,
        strict: bool = False,
        step_limit: int = STEP_LIMIT,
    ) -> None:
        self.config = config
        self.timing = TimingParameters() if timing is None else timing
        if not isinstance(self.timing, TimingParameters):
            raise VTAError(f"{timing!r} is not TimingParameters", where="simulator")
        self._functional = FunctionalSimulator(
            config, strict=strict, step_limit=step_limit
        )

    def run(self, instructions: bytes, dram: bytearray) -> VtaTiming:
        """Execute a stream in place on `dram`; its counters, cycles and timeline.

        Raises what `FunctionalSimulator.run` raises.
        """
        program = InstructionStream.decode(instructions, self.config)
        counters = self._functional.execute(program, dram)
        return self._clocked(program, counters)

    def _clocked(self, program: InstructionStream, counters: Counters) -> VtaTiming:
        clock = _Clock(program, self.config, self.timing)
        while clock.advance():
            pass
        macs = counters.gemm_counter * self.config.BATCH * self.config.BLOCK**2
        return VtaTiming(
            counters=counters,
            cycles=clock.now,
            spans=tuple(sorted(clock.spans, key=lambda s: (s.start, s.index))),
            macs=macs,
            macs_per_cycle=self.config.BATCH * self.config.BLOCK**2,
            instructions=program.instructions,
        )


@dataclass(slots=True)
class _Running:
    """An instruction under way: until `until` it starts, works or waits for DRAM; then `bytes`."""

    span: InstructionSpan
    until: int
    left: int  # of the bytes, in shares


class _Clock:
    """Time continues from event to event."""

    def __init__(
        self, program: InstructionStream, config: VTAConfig, timing: TimingParameters
    ) -> None:
        self.program = program
        self.config = config
        self.timing = timing
        self.waiting = dealt(program)
        # When tokens came that are not taken yet, by queue.
        self.tokens: dict[str, deque[int]] = {q: deque() for q in QUEUES}
        self.free = dict.fromkeys(VtaModule, 0)
        self.running: dict[VtaModule, _Running] = {}
        self.spans: list[InstructionSpan] = []
        self.now = 0

    def advance(self) -> bool:
        """Start what can start and continue to the next event; whether there is one."""
        for stage, queue in self.waiting.items():
            if stage not in self.running and queue and self._ready(queue[0]):
                self._start(stage, queue.popleft())
        if not self.running:
            return False
        moving = [r for r in self.running.values() if r.until <= self.now and r.left]
        rate = self.timing.dram_bytes_per_cycle * _SHARES // max(1, len(moving))
        ends = [-(-r.left // rate) for r in moving]
        ends += [
            r.until - self.now for r in self.running.values() if r.until > self.now
        ]
        step = min(ends, default=0)
        for r in moving:
            r.left = max(0, r.left - step * rate)
        self.now += step
        for stage, r in list(self.running.items()):
            if r.until <= self.now and not r.left:
                self._end(stage, r)
        return True

    def _ready(self, index: int) -> bool:
        return all(self.tokens[q] for q in self.program.pops[index])

    def _start(self, stage: VtaModule, index: int) -> None:
        instruction = self.program.instructions[index]
        t = self.timing
        came = {q: self.tokens[q].popleft() for q in self.program.pops[index]}
        # The wait is put down to the token that came last.
        last = max(came, key=lambda q: came[q], default=None)
        working, latency, left = 0, 0, 0
        if isinstance(instruction, Micro):
            interval = (
                t.gemm_interval if isinstance(instruction, Gemm) else t.alu_interval
            )
            working = instruction.steps * interval
        elif (
            isinstance(instruction, Transfer)
            and instruction.x_size
            and instruction.y_size
        ):
            latency = t.dram_latency
            left = dram_bytes(instruction, self.config)
        span = InstructionSpan(
            index=index,
            stage=stage,
            start=self.now,
            end=self.now,
            waited=self.now - self.free[stage],
            waited_for=last if self.now > self.free[stage] else None,
            parts={
                "start": t.start,
                "work": working,
                "dram latency": latency,
                "dram transfer": -(-left // t.dram_bytes_per_cycle),
            },
        )
        until = self.now + t.start + working + latency
        self.running[stage] = _Running(span, until, left * _SHARES)

    def _end(self, stage: VtaModule, r: _Running) -> None:
        span = r.span.ended(self.now)
        self.spans.append(span)
        self.free[stage] = self.now
        del self.running[stage]
        for queue in self.program.pushes[span.index]:
            self.tokens[queue].append(self.now)
