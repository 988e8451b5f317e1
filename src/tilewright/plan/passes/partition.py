"""Partitioning a plan over devices: which steps run elsewhere, and the copies needed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import field, replace

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.compute.transforms import relayout
from tilewright.expr.nodes import Buffer
from tilewright.ir.passes import Pass
from tilewright.loops.passes.on_buffers import on_buffers
from tilewright.plan.nodes import (
    HOST,
    DeviceCall,
    DeviceCopy,
    FusionGroup,
    HostFallback,
    Plan,
    Step,
)

# The reason why a device rejects a group, or an operator without groups, given which of its results
# others use; empty if it accepts.
Refuses = Callable[[FusionGroup | HostFallback, Collection[Buffer]], str]


@dataclass(frozen=True)
class Partition(Pass[Plan]):
    """Moves the host's steps that a device accepts to it, on copies of the tensors.

    A step moves if everything that it reads is complete before it and no other step writes what it
    writes; on a device that accepts groups of any form, if all such writers move. Constants that
    only groups of the device read move, too.

    any_form: whether the device accepts hand-written Kernels and writes to parts of tensors.
    """

    device: str
    refuses: Refuses = field(repr=False)
    any_form: bool = False

    def run(self, program: Plan) -> Plan:
        found = _Partition(program, self.device, self.any_form)
        reasons: dict[Step, str] = {}
        for step in program.steps:
            if isinstance(step, FusionGroup | HostFallback) and step.device == HOST:
                live = found.live(step)
                reasons[step] = found.stays(step) or self.refuses(step, live)
        found.keep_together(reasons)
        for step, why in reasons.items():
            where = HOST if why else self.device
            sources = step.sources if isinstance(step, FusionGroup) else (step.name,)
            events.emit(
                "placed-on", device=where, why=why, step=step.name, sources=sources
            )
        taken = {step for step, why in reasons.items() if not why}
        return found.divided(taken)


class _Partition:
    """A plan being divided: the device of each tensor, and its number of pending writes."""

    def __init__(self, plan: Plan, device: str, any_form: bool = False) -> None:
        self.plan = plan
        self.device = device
        self.any_form = any_form
        self.writers: dict[Buffer, list[Step]] = {}
        for step in plan.steps:
            for b in step.writes:
                self.writers.setdefault(b, []).append(step)
        self.order = {step: n for n, step in enumerate(plan.steps)}
        self.devices = dict(plan.devices)
        self.steps: list[Step] = []
        self.there: dict[
            Buffer, Buffer
        ] = {}  # a tensor on the host -> its copy on the device

    def live(self, step: FusionGroup | HostFallback) -> Collection[Buffer]:
        """The results of a step that others use."""
        return (
            self.plan.live[step] if isinstance(step, FusionGroup) else set(step.writes)
        )

    def stays(self, step: FusionGroup | HostFallback) -> str:
        """Why a step cannot leave the host, whatever the device; empty if it can."""
        given = isinstance(step, FusionGroup) and step.kernel is not None
        if given and not self.any_form:
            return "it is a hand-written Kernel"
        if isinstance(step, HostFallback):
            op = step.operation
            ends = ((op.reads, step.reads), (op.writes, step.writes))
            if any(len(values) != len(buffers) for values, buffers in ends):
                return "not all of its operands are tensors in memory"
        for b in step.writes:
            if len(self.writers[b]) > 1 and not self.any_form:
                return f"other steps also write {b.name}"
        for b in step.reads:
            if any(self.order[s] > self.order[step] for s in self.writers.get(b, ())):
                return f"{b.name} is not complete yet"
        return ""

    def keep_together(self, reasons: dict[Step, str]) -> None:
        """Keep a tensor's writers on one device if one of them stays or it is read in between."""
        several = {b: w for b, w in self.writers.items() if len(w) > 1}
        early = {
            b
            for step in self.plan.steps
            for b in step.reads
            if b in several and self.order[step] < self.order[several[b][-1]]
        }
        changed = True
        while changed:
            changed = False
            for b, writers in several.items():
                stays = b in early or any(reasons.get(s, b.name) for s in writers)
                for step in writers if stays else ():
                    if step in reasons and not reasons[step]:
                        reasons[step] = f"other steps also write {b.name}"
                        changed = True

    def divided(self, taken: set[Step]) -> Plan:
        """The plan with these steps on the device."""
        if not taken:
            return self.plan
        here = (s for s in self.plan.steps if s not in taken)
        wanted = {b for s in here for b in s.reads} | set(self.plan.results)
        for b in self.plan.data:
            if b not in wanted and any(b in s.reads for s in taken):
                self.devices[b] = self.device
        for step in self.plan.steps:
            if step in taken and isinstance(step, FusionGroup | HostFallback):
                self._moved(step, wanted)
            else:
                self.steps.append(step)
        return replace(self.plan, steps=tuple(self.steps), devices=self.devices)

    def _moved(self, step: FusionGroup | HostFallback, wanted: set[Buffer]) -> None:
        """A step on the device, with its operands copied there and results that others read copied
        back."""
        names = {b: self._read(b) for b in step.reads}
        live = self.live(step)
        for b in step.writes:
            if b in live:
                if b not in self.there:
                    self.there[b] = self._buffer(b)
                names[b] = self.there[b]
            else:
                self.devices[b] = self.device
        self.steps.append(self._renamed(step, names))
        for b in step.writes:
            if b in live and b in wanted and self.writers[b][-1] is step:
                self.steps.append(DeviceCopy(names[b], b))

    def _renamed(
        self, step: FusionGroup | HostFallback, names: Mapping[Buffer, Buffer]
    ) -> Step:
        """A step on the device's buffers."""
        if isinstance(step, HostFallback):
            reads, writes = (
                tuple(map(names.__getitem__, e)) for e in (step.reads, step.writes)
            )
            return DeviceCall(
                operation=step.operation,
                reads=reads,
                writes=writes,
                device=self.device,
            )
        if step.kernel is not None:
            kernel = on_buffers(step.kernel, names)
            return replace(step, kernel=kernel, device=self.device)
        orders = {b: (to, tuple(range(len(b.shape)))) for b, to in names.items()}
        made = tuple(relayout(c, orders) for c in step.computations)
        return replace(step, computations=made, device=self.device)

    def _read(self, b: Buffer) -> Buffer:
        """A tensor as read by groups on the device."""
        if self.devices.get(b) == self.device:
            return b
        if b not in self.there:
            self.there[b] = self._buffer(b)
            self.steps.append(DeviceCopy(b, self.there[b]))
        return self.there[b]

    def _buffer(self, b: Buffer) -> Buffer:
        """A buffer of the device like one of the host's."""
        made = Buffer(f"{b.name}_{self.device}", b.shape, b.dtype)
        self.devices[made] = self.device
        return made
