"""The results of a timed run: cycles, what each module did and waited for, and a trace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.targets.vta.functional import Counters
from tilewright.targets.vta.isa import Instruction
from tilewright.targets.vta.stages import VtaModule
from tilewright.targets.vta.text import show

CONTENTION = "dram contention"
ENDED = "ended"


@dataclass(frozen=True, slots=True)
class InstructionSpan:
    """One instruction in time.

    waited: how long its module was stalled before it, for a token of the queue `waited_for`. parts:
    its cycles by purpose: start, work (steps of GEMM or ALU), dram latency, dram transfer (the bus
    at full speed), dram contention (added by sharing the bus).
    """

    index: int
    stage: VtaModule
    start: int
    end: int
    waited: int
    waited_for: str | None
    parts: Mapping[str, int]

    def ended(self, end: int) -> InstructionSpan:
        """The span with its end, and the cycles that nothing else explains."""
        contention = end - self.start - sum(self.parts.values())
        return replace(self, end=end, parts={**self.parts, CONTENTION: contention})


@dataclass(frozen=True, slots=True)
class ModuleTimes:
    """The activity of one module: busy cycles by purpose, stalled cycles by cause.

    A cause is a queue whose token was missing, or "ended": nothing was left to do.
    """

    busy: int
    utilization: float
    parts: Mapping[str, int]
    stalls: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class VtaTiming:
    """A timed run: its results, its duration, the timeline of its instructions."""

    counters: Counters
    cycles: int
    spans: Sequence[InstructionSpan]
    macs: int
    macs_per_cycle: int
    instructions: Sequence[Instruction]

    @property
    def utilization(self) -> float:
        """Multiply-accumulates done, of those that the matrix unit could do in all cycles."""
        if self.cycles:
            return self.macs / (self.macs_per_cycle * self.cycles)
        return 0.0

    @property
    def modules(self) -> dict[VtaModule, ModuleTimes]:
        """What each module did."""
        return {stage: self._module(stage) for stage in VtaModule}

    def _module(self, stage: VtaModule) -> ModuleTimes:
        parts: dict[str, int] = {}
        stalls: dict[str, int] = {}
        last = 0
        for span in (s for s in self.spans if s.stage is stage):
            for name, cycles in span.parts.items():
                parts[name] = parts.get(name, 0) + cycles
            if span.waited_for:
                stalls[span.waited_for] = stalls.get(span.waited_for, 0) + span.waited
            last = span.end
        stalls[ENDED] = self.cycles - last
        busy = sum(parts.values())
        return ModuleTimes(
            busy, busy / self.cycles if self.cycles else 0.0, parts, stalls
        )

    def __str__(self) -> str:
        """A table of the modules: busy cycles and their parts, stalls and their causes."""
        lines = [
            f"{self.cycles} cycles, {self.macs} MACs, {self.utilization:.1%} of the peak"
        ]
        for stage, m in self.modules.items():
            busy = ", ".join(
                f"{name} {cycles}" for name, cycles in m.parts.items() if cycles
            )
            idle = ", ".join(
                f"{name} {cycles}" for name, cycles in m.stalls.items() if cycles
            )
            lines.append(f"{stage.name:<8}{m.utilization:>7.1%} busy: {busy or '-'}")
            lines.append(f"{'':<15} idle: {idle or '-'}")
        return "\n".join(lines)

    @property
    def timeline(self) -> dict[str, Any]:
        """The spans and stalls as a Chrome trace, ready for JSON; a cycle is 1 us there."""
        return {"traceEvents": list(self._events()), "displayTimeUnit": "ns"}

    def _events(self) -> Iterator[dict[str, Any]]:
        threads = {stage: tid for tid, stage in enumerate(VtaModule)}
        yield {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": "VTA"}}
        for stage, tid in threads.items():
            name = {"name": stage.name.lower()}
            yield {"ph": "M", "pid": 0, "tid": tid, "name": "thread_name", "args": name}
        for span in self.spans:
            common = {"ph": "X", "pid": 0, "tid": threads[span.stage]}
            if span.waited_for:
                waiting = {
                    "name": f"wait {span.waited_for}",
                    "cat": "stall",
                    "dur": span.waited,
                }
                yield {**common, **waiting, "ts": span.start - span.waited}
            text = show(self.instructions[span.index])
            parts = {name: cycles for name, cycles in span.parts.items() if cycles}
            yield {
                **common,
                "name": text.split(" ")[0],
                "cat": "instruction",
                "ts": span.start,
                "dur": span.end - span.start,
                "args": {"index": span.index, "text": text, **parts},
            }
