"""Partitioning a plan over devices: which groups run elsewhere, and the copies that this takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tilewright.base import events
from tilewright.compute.transforms import relayout
from tilewright.expr.nodes import Buffer
from tilewright.ir.passes import Pass
from tilewright.plan.nodes import HOST, DeviceCopy, FusionGroup, Plan, Step

# Why a device does not take a group; empty where it does.
Refuses = Callable[[FusionGroup], str]


@dataclass(frozen=True)
class Partition(Pass[Plan]):
    """Groups of the host that a device takes run there, on copies of their tensors.

    A group goes there if nobody else writes what it writes, and all that it reads is complete
    before it. Constants that only groups of the device read are the device's.
    """

    device: str
    refuses: Refuses = field(repr=False)

    def run(self, program: Plan) -> Plan:
        found = _Partition(program, self.device)
        taken = set()
        for group in program.groups:
            if group.device != HOST:
                continue
            why = found.stays(group) or self.refuses(group)
            if not why:
                taken.add(group)
            where = HOST if why else self.device
            names = {"group": group.name, "sources": group.sources}
            events.emit("placed-on", device=where, why=why, **names)
        return found.divided(taken)


class _Partition:
    """A plan that is being divided: where each tensor is, and how often it is still written."""

    def __init__(self, plan: Plan, device: str) -> None:
        self.plan = plan
        self.device = device
        self.writers: dict[Buffer, list[Step]] = {}
        for step in plan.steps:
            for b in step.writes:
                self.writers.setdefault(b, []).append(step)
        self.order = {step: n for n, step in enumerate(plan.steps)}
        self.devices = dict(plan.devices)
        self.steps: list[Step] = []
        self.there: dict[Buffer, Buffer] = {}  # a tensor on the host -> on the device

    def stays(self, group: FusionGroup) -> str:
        """Why a group cannot leave the host, whatever the device; empty where it can."""
        if group.kernel is not None:
            return "it is a Kernel given as such"
        for b in group.writes:
            if len(self.writers[b]) > 1:
                return f"others write {b.name} too"
        for b in group.reads:
            if any(self.order[s] > self.order[group] for s in self.writers.get(b, ())):
                return f"{b.name} is not complete yet"
        return ""

    def divided(self, taken: set[FusionGroup]) -> Plan:
        """The plan with these groups on the device."""
        if not taken:
            return self.plan
        here = (s for s in self.plan.steps if s not in taken)
        wanted = {b for s in here for b in s.reads} | set(self.plan.results)
        for b in self.plan.data:
            if b not in wanted and any(b in g.reads for g in taken):
                self.devices[b] = self.device
        for step in self.plan.steps:
            if isinstance(step, FusionGroup) and step in taken:
                self._moved(step, wanted)
            else:
                self.steps.append(step)
        return replace(self.plan, steps=tuple(self.steps), devices=self.devices)

    def _moved(self, group: FusionGroup, wanted: set[Buffer]) -> None:
        """A group on the device, with what it reads copied there, and back what others want."""
        names = {b: self._read(b) for b in group.reads}
        live = self.plan.live[group]
        for b in group.writes:
            if b in live:
                names[b] = self.there[b] = self._buffer(b)
            else:
                self.devices[b] = self.device
        orders = {b: (to, tuple(range(len(b.shape)))) for b, to in names.items()}
        made = tuple(relayout(c, orders) for c in group.computations)
        self.steps.append(replace(group, computations=made, device=self.device))
        for b in group.writes:
            if b in live and b in wanted:
                self.steps.append(DeviceCopy(names[b], b))

    def _read(self, b: Buffer) -> Buffer:
        """A tensor as groups on the device read it."""
        if self.devices.get(b) == self.device:
            return b
        if b not in self.there:
            self.there[b] = self._buffer(b)
            self.steps.append(DeviceCopy(b, self.there[b]))
        return self.there[b]

    def _buffer(self, b: Buffer) -> Buffer:
        """A tensor of the device's like one of the host's."""
        made = Buffer(f"{b.name}_{self.device}", b.shape, b.dtype)
        self.devices[made] = self.device
        return made
