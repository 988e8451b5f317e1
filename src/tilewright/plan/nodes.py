"""The plan: a model between operators and kernels, as groups of Computations over buffers.

    Plan = Plan(graph, steps, buffers, data, devices, memory, open)
    OpenExtent = OpenExtent(size, least, most, source)
    Step = FusionGroup | HostFallback | DeviceCall | DeviceCopy | Loop | Branch
    FusionGroup = FusionGroup(name, computations, sources, flops, kernel, device)
    HostFallback = HostFallback(operation, reads, writes)
    DeviceCall = DeviceCall(operation, reads, writes, device)
    DeviceCopy = DeviceCopy(source, target)
    Loop = Loop(operation, body, trips, going, initial, taken, count, states, stacked)
    Branch = Branch(operation, then, other, condition, taken, results)

Lowering gives one fusion group per operator; fusion merges groups; each that is left becomes one
kernel. A tensor is a Buffer; it may be written by several groups on disjoint parts (concat). The
steps run in order, each on the buffers of its device; copies take tensors from one to another. A
plan is immutable: a pass gives another.

A plan may be open: it is then for every call whose sizes are within bounds. A size is a Var, and
extents of buffers and dimensions are numbers or expressions of sizes. Its value comes from an
extent of an input, known before the first step, or from a count: an int64[1] that an earlier step
writes, with which the shape of a result depends on data. No step may use a tensor before the sizes
of its extents are known. A count outside its bounds is an error, and never an access.
A tensor is as large as its sizes say, row-major without gaps, so that a step of an open plan means
what the same step of the plan `open_extents.at` these sizes means: verifier and interpreter say
nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from tilewright.base.names import fresh
from tilewright.base.text import plural
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Var
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.loops.nodes import Kernel

SOURCES = 256  # operators that a group names: a plan grows as the model does
HOST: Final = "host"  # the device that Python runs on


@dataclass(frozen=True, eq=False)
class FusionGroup:
    """Computations that run as one kernel, in order; or one Kernel given as such.

    sources: the names of the operators it came from. flops: counted by the operators. device: where
    it runs.
    """

    name: str
    computations: tuple[Computation, ...]
    sources: tuple[str, ...] = ()
    flops: int = 0
    kernel: Kernel | None = None
    device: str = HOST
    _reads: list[Buffer] = field(default_factory=list, init=False, repr=False)

    @property
    def writes(self) -> tuple[Buffer, ...]:
        """Every buffer written, internal ones included, in order."""
        if self.kernel is not None:
            return self.kernel.outputs
        return tuple(
            dict.fromkeys(o.tensor for c in self.computations for o in c.outputs)
        )

    @property
    def reads(self) -> tuple[Buffer, ...]:
        """Buffers read that the group does not write itself, in order."""
        if self.kernel is not None:
            return self.kernel.inputs
        if not self._reads:
            own = set(self.writes)
            seen = dict.fromkeys(
                b for c in self.computations for b in c.inputs if b not in own
            )
            self._reads.extend(seen)
        return tuple(self._reads)

    @property
    def is_map(self) -> bool:
        """One Computation without reductions."""
        return len(self.computations) == 1 and self.computations[0].is_map


@dataclass(frozen=True, eq=False, slots=True)
class HostFallback:
    """One operator that runs as a host fallback, in Python.

    reads, writes: its tensors that have a Buffer, always whole; it may have others, which native
    code does not touch.
    """

    operation: Operation
    reads: tuple[Buffer, ...] = ()
    writes: tuple[Buffer, ...] = ()

    @property
    def name(self) -> str:
        """The operator's label."""
        return self.operation.label

    @property
    def device(self) -> str:
        """Python runs on the host."""
        return HOST


@dataclass(frozen=True, eq=False, slots=True)
class DeviceCall:
    """One operator that a device runs whole, by its own program and no kernel.

    reads, writes: its tensors on the device, one for each of the operation's.
    """

    operation: Operation
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]
    device: str

    @property
    def name(self) -> str:
        """The operator's label."""
        return self.operation.label


@dataclass(frozen=True, eq=False, slots=True)
class DeviceCopy:
    """A whole tensor copied from one device to another, one of which is the host."""

    source: Buffer
    target: Buffer

    @property
    def name(self) -> str:
        """What is copied."""
        return f"copy of {self.source.name}"

    @property
    def reads(self) -> tuple[Buffer, ...]:
        """The source."""
        return (self.source,)

    @property
    def writes(self) -> tuple[Buffer, ...]:
        """The target."""
        return (self.target,)


@dataclass(frozen=True, eq=False, slots=True)
class Loop:
    """A plan that runs while it is going, and its number is below `trips`.

    body: takes its number, the states and `taken`; gives whether it continues, the states and the
    items, each in its own buffer that its steps write; only what stays unchanged may be what
    was taken, a constant, or the state itself. initial, states: before and after, one each.
    stacked: item n is row n; the rows after `count`, the number of iterations, are 0.
    """

    operation: Operation
    body: Plan
    trips: Buffer
    going: Buffer
    initial: tuple[Buffer, ...]
    taken: tuple[Buffer, ...]
    count: Buffer
    states: tuple[Buffer, ...]
    stacked: tuple[Buffer, ...]

    @property
    def name(self) -> str:
        """The operator's label."""
        return self.operation.label

    @property
    def device(self) -> str:
        """Loops run on the host."""
        return HOST

    @property
    def bodies(self) -> tuple[Plan, ...]:
        """The plans inside."""
        return (self.body,)

    @property
    def bound(self) -> int | None:
        """The most iterations that there are rows for; None where nothing is stacked."""
        return self.stacked[0].shape[0] if self.stacked else None

    @property
    def reads(self) -> tuple[Buffer, ...]:
        """Every buffer that it takes, each once."""
        found = (self.trips, self.going, *self.initial, *self.taken)
        return tuple(dict.fromkeys(found))

    @property
    def writes(self) -> tuple[Buffer, ...]:
        """Every buffer that it gives."""
        return (self.count, *self.states, *self.stacked)

    def with_bodies(self, bodies: Sequence[Plan]) -> Loop:
        """The same with another plan inside."""
        return replace(self, body=bodies[0])


@dataclass(frozen=True, eq=False, slots=True)
class Branch:
    """One of two plans, which take the same buffers: `then` where the condition holds."""

    operation: Operation
    then: Plan
    other: Plan
    condition: Buffer
    taken: tuple[Buffer, ...]
    results: tuple[Buffer, ...]

    @property
    def name(self) -> str:
        """The operator's label."""
        return self.operation.label

    @property
    def device(self) -> str:
        """Branches run on the host."""
        return HOST

    @property
    def bodies(self) -> tuple[Plan, ...]:
        """The plans inside."""
        return (self.then, self.other)

    @property
    def reads(self) -> tuple[Buffer, ...]:
        """Every buffer that it takes, each once."""
        return tuple(dict.fromkeys((self.condition, *self.taken)))

    @property
    def writes(self) -> tuple[Buffer, ...]:
        """The results."""
        return self.results

    def with_bodies(self, bodies: Sequence[Plan]) -> Branch:
        """The same with other plans inside."""
        return replace(self, then=bodies[0], other=bodies[1])


Control = Loop | Branch
Step = FusionGroup | HostFallback | DeviceCall | DeviceCopy | Loop | Branch


@dataclass(frozen=True, eq=False, slots=True)
class OpenExtent:
    """A size known only at run time: from `least` to `most`, both included.

    source: an input and the axis whose extent it is, or the buffer that holds the count.
    """

    size: Var
    least: int
    most: int
    source: tuple[Value, int] | Buffer


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Where buffers are in the arenas: one on the host, and one on each other device.

    places: byte offsets. total: bytes of the host's arena. over: for each group the buffers that it
    reads whose place its last result may take, as its kernel allows. elsewhere: bytes of the arena
    of every other device. inside: where the arenas of the plans inside a step begin.
    """

    places: Mapping[Buffer, int]
    total: int
    over: Mapping[FusionGroup, tuple[Buffer, ...]] = field(default_factory=dict)
    elsewhere: Mapping[str, int] = field(default_factory=dict)
    inside: Mapping[Control, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Plan:
    """A graph as steps in the order in which they run.

    graph: its name, inputs, outputs and constants are the plan's; a plan that was parsed has no
    operations there. buffers: of every value that native code touches. data: the constants'
    contents, row-major in the buffer's shape. devices: of the buffers that are not on the host.
    memory: known once kernels are. open: sizes known only at run time.
    """

    graph: Graph
    steps: tuple[Step, ...] = ()
    buffers: Mapping[Value, Buffer] = field(default_factory=dict)
    data: Mapping[Buffer, np.ndarray[Any, Any]] = field(default_factory=dict)
    devices: Mapping[Buffer, str] = field(default_factory=dict)
    memory: MemoryPlan | None = None
    open: tuple[OpenExtent, ...] = ()

    @cached_property
    def groups(self) -> tuple[FusionGroup, ...]:
        """The steps that become kernels."""
        return tuple(s for s in self.steps if isinstance(s, FusionGroup))

    @cached_property
    def host_fallbacks(self) -> tuple[HostFallback, ...]:
        """The steps that Python runs."""
        return tuple(s for s in self.steps if isinstance(s, HostFallback))

    @cached_property
    def given(self) -> frozenset[Buffer]:
        """What exists before the first step: inputs and constants."""
        values = (*self.graph.inputs, *self.graph.constants)
        return frozenset(self.buffers[v] for v in values if v in self.buffers)

    @cached_property
    def results(self) -> tuple[Buffer, ...]:
        """What leaves the model, in order."""
        return tuple(self.buffers[v] for v in self.graph.outputs if v in self.buffers)

    @cached_property
    def kept(self) -> frozenset[Buffer]:
        """Buffers that stay unchanged: results, and what steps other than groups touch."""
        others = (s for s in self.steps if not isinstance(s, FusionGroup))
        used = (b for s in others for b in (*s.reads, *s.writes))
        return frozenset((*self.results, *used))

    @cached_property
    def named_values(self) -> tuple[Value, ...]:
        """Inputs, constants, outputs, and what whole operators use: no group has them to itself."""
        graph = self.graph
        found = [*graph.inputs, *graph.constants, *graph.outputs]
        for step in self.steps:
            if isinstance(step, HostFallback | DeviceCall):
                found += step.operation.reads
                found += step.operation.writes
        return tuple(dict.fromkeys(found))

    @cached_property
    def live(self) -> Mapping[FusionGroup, frozenset[Buffer]]:
        """For each group the buffers that another step, or the caller of the model, uses."""
        uses = dict.fromkeys(self.results, 2)
        for step in self.steps:
            for b in {*step.reads, *step.writes}:
                uses[b] = uses.get(b, 0) + 1
        used_elsewhere = frozenset(b for b, count in uses.items() if count > 1)
        return {s: used_elsewhere.intersection(s.writes) for s in self.groups}

    def groups_on(self, device: str) -> tuple[FusionGroup, ...]:
        """The groups that run on a device."""
        return tuple(g for g in self.groups if g.device == device)

    def device_of(self, buffer: Buffer) -> str:
        """Where the buffer's memory is."""
        return self.devices.get(buffer, HOST)

    def touched(self, step: Step) -> tuple[Buffer, ...]:
        """The buffers in memory that a step uses: all it reads, then what of its results is live.

        Only of Computations some results may stay out of memory.
        """
        if not isinstance(step, FusionGroup) or step.kernel is not None:
            return (*step.reads, *step.writes)
        return (*step.reads, *(b for b in step.writes if b in self.live[step]))

    def with_steps(self, steps: Iterable[Step]) -> Plan:
        """The plan with other steps; itself if they are the same."""
        found = tuple(steps)
        if found == self.steps:
            return self
        return replace(self, steps=found)

    def with_constants(self, data: Mapping[Buffer, np.ndarray[Any, Any]]) -> Plan:
        """The plan with more constants, which its steps read; itself without any."""
        if not data:
            return self
        taken = {v.name for v in self.graph.values}
        values = {
            Value(
                fresh(taken, b.name),
                b.dtype,
                b.shape,
            ): b
            for b in data
        }
        arrays = {v: data[b] for v, b in values.items()}
        graph = replace(self.graph, constants={**self.graph.constants, **arrays})
        buffers, known = {**self.buffers, **values}, {**self.data, **data}
        return replace(self, graph=graph, buffers=buffers, data=known)

    def __repr__(self) -> str:
        return f"Plan({self.graph.name!r}, {plural(len(self.steps), 'step')})"

    def __str__(self) -> str:
        from tilewright.plan.printer import show

        return show(self)


class DefUse:
    """Which groups write and which read each buffer in a plan; other steps are left out."""

    def __init__(self, groups: Iterable[Step]) -> None:
        self.writers: dict[Buffer, list[FusionGroup]] = {}
        self.readers: dict[Buffer, list[FusionGroup]] = {}
        for group in groups:
            if isinstance(group, FusionGroup):
                self.add(group)

    def add(self, group: FusionGroup) -> None:
        """Take a group into account."""
        for b in group.writes:
            self.writers.setdefault(b, []).append(group)
        for b in group.reads:
            self.readers.setdefault(b, []).append(group)

    def remove(self, group: FusionGroup) -> None:
        """Forget a group."""
        for b in group.writes:
            self.writers[b].remove(group)
        for b in group.reads:
            self.readers[b].remove(group)

    def sole_reader(self, buffer: Buffer) -> FusionGroup | None:
        """The only group that reads `buffer`, or None."""
        found = self.readers.get(buffer, [])
        if len(found) == 1:
            return found[0]
        return None


def joined(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    """Both lists of operators' names in order, each name once, and SOURCES of them at most.

    An operator comes on several ways where two that read its result join again.
    """
    return tuple(dict.fromkeys((*first, *second)))[:SOURCES]


def merge(
    first: FusionGroup, second: FusionGroup, computations: Sequence[Computation]
) -> FusionGroup:
    """One group with the given Computations, named after both."""
    short = f"{first.name}+{second.name.rsplit('.', 1)[-1]}"
    name = short if len(short) <= 60 else first.name
    return FusionGroup(
        name,
        tuple(computations),
        joined(first.sources, second.sources),
        first.flops + second.flops,
    )
