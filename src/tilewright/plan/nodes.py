"""The plan: a model between operators and kernels, as groups of Computations over buffers.

    Plan = Plan(graph, steps, buffers, data, devices, memory, open)
    OpenExtent = OpenExtent(size, least, most, source, counted)
    Step = FusionGroup | HostFallback | DeviceCall | DeviceCopy | Loop | Branch
    FusionGroup = FusionGroup(name, computations, sources, flops, kernel, device)
    HostFallback = HostFallback(operation, reads, writes)
    DeviceCall = DeviceCall(operation, reads, writes, device)
    DeviceCopy = DeviceCopy(source, target)
    Loop = Loop(operation, body, trips, going, initial, taken, count, states, stacked)
    Branch = Branch(operation, then, other, condition, taken, results)

Lowering makes one fusion group per operator; fusion merges groups; each remaining group becomes one
kernel. A tensor is a Buffer; several groups may write disjoint parts of it (concat). The steps run
in order, each on the buffers of its device; copies move tensors between devices. Plans are
immutable: a pass returns a new one.

A plan may be open: it then serves every call whose sizes are within bounds. A size is a Var, and
extents of buffers and dimensions are numbers or expressions of sizes. Its value comes from an
extent of an input, known before the first step, or from a count: an int64[1] that an earlier step
writes, for results with data-dependent shapes. No step may use a tensor before the sizes of its
extents are known. A count outside its bounds is an error and is never used for an access. A tensor
is exactly as large as its sizes say and dense row-major, so a step of an open plan means the same
as that step in the plan `open_extents.at` these sizes. Verifier and interpreter are defined this
way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.names import fresh
from tilewright.base.text import plural
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Var
from tilewright.expr.reads import reads_memory
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.loops.nodes import Kernel

SOURCES = 256  # most operators that a group names, so that a plan's size is linear in the model's
HOST: Final = "host"  # the device that runs Python


@dataclass(frozen=True, eq=False)
class FusionGroup:
    """Computations that run in order as one kernel; or a single hand-written Kernel.

    sources: the names of the operators it came from. flops: as counted by the operators. device:
    where it runs.
    """

    name: str
    computations: tuple[Computation, ...]
    sources: tuple[str, ...] = ()
    flops: int = 0
    kernel: Kernel | None = None
    device: str = HOST

    @cached_property
    def writes(self) -> tuple[Buffer, ...]:
        """Every buffer written, including internal ones, in order."""
        if self.kernel is not None:
            return self.kernel.outputs
        return tuple(
            dict.fromkeys(o.tensor for c in self.computations for o in c.outputs)
        )

    @cached_property
    def reads(self) -> tuple[Buffer, ...]:
        """Buffers that the group reads but does not write, in order."""
        if self.kernel is not None:
            return self.kernel.inputs
        own = set(self.writes)
        return tuple(
            dict.fromkeys(
                b for c in self.computations for b in c.inputs if b not in own
            )
        )

    def looks_up(self, tensor: Buffer) -> bool:
        """Whether it reads a place in the tensor from memory; only the extents bound that."""
        for c in self.computations:
            written = (o.tensor[o.index] for o in c.outputs)
            for access in (*c.accesses, *written):
                if access.buffer is not tensor:
                    continue
                if any(map(reads_memory, access.index)):
                    return True
        return False

    @property
    def is_map(self) -> bool:
        """Whether it is one Computation without reductions."""
        return len(self.computations) == 1 and self.computations[0].is_map


@dataclass(frozen=True, eq=False, slots=True)
class HostFallback:
    """One operator that runs as a host fallback, in Python.

    reads, writes: its tensors that have a Buffer, always whole; it may have other tensors, which
    native code does not use.
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
        """The host, where Python runs."""
        return HOST


@dataclass(frozen=True, eq=False, slots=True)
class DeviceCall:
    """One operator that a device runs as a whole, by its own program instead of a kernel.

    reads, writes: its tensors on the device, one for each of the operation's tensors.
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
    """A copy of a whole tensor between the host and another device."""

    source: Buffer
    target: Buffer

    @property
    def name(self) -> str:
        """The name of the copied tensor."""
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
    """A nested plan that runs while `going` holds and its iteration number is below `trips`.

    body: takes the iteration number, the states and `taken`; returns the condition to continue, the
    states and the items, each in a separate buffer that a step writes. Only an unchanged value may
    instead be a captured value, a constant, or the state itself. initial, states: before and after,
    one each. stacked: item n is row n; the rows after `count`, the number of iterations, are 0.
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
        """The host, where loops run."""
        return HOST

    @property
    def bodies(self) -> tuple[Plan, ...]:
        """The nested plans."""
        return (self.body,)

    @property
    def bound(self) -> int | None:
        """The number of iterations that there are rows for; None if nothing is stacked."""
        return self.stacked[0].shape[0] if self.stacked else None

    @property
    def reads(self) -> tuple[Buffer, ...]:
        """Every buffer that it reads, each once."""
        found = (self.trips, self.going, *self.initial, *self.taken)
        return tuple(dict.fromkeys(found))

    @property
    def writes(self) -> tuple[Buffer, ...]:
        """Every buffer that it writes."""
        return (self.count, *self.states, *self.stacked)

    def with_bodies(self, bodies: Sequence[Plan]) -> Loop:
        """The same loop with another nested plan."""
        return replace(self, body=bodies[0])


@dataclass(frozen=True, eq=False, slots=True)
class Branch:
    """One of two plans with the same inputs: `then` if the condition holds."""

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
        """The host, where branches run."""
        return HOST

    @property
    def bodies(self) -> tuple[Plan, ...]:
        """The nested plans."""
        return (self.then, self.other)

    @property
    def reads(self) -> tuple[Buffer, ...]:
        """Every buffer that it reads, each once."""
        return tuple(dict.fromkeys((self.condition, *self.taken)))

    @property
    def writes(self) -> tuple[Buffer, ...]:
        """The results."""
        return self.results

    def with_bodies(self, bodies: Sequence[Plan]) -> Branch:
        """The same branch with other nested plans."""
        return replace(self, then=bodies[0], other=bodies[1])


Control = Loop | Branch
Step = FusionGroup | HostFallback | DeviceCall | DeviceCopy | Loop | Branch


@dataclass(frozen=True, eq=False, slots=True)
class OpenExtent:
    """A size known only at run time: from `least` to `most`, both included.

    source: an input and the axis whose extent it is, or the buffer that holds the count. counted:
    its value where the flops of groups were counted; None: `most`.
    """

    size: Var
    least: int
    most: int
    source: tuple[Value, int] | Buffer
    counted: int | None = None

    @property
    def at_count(self) -> int:
        """Its value where the flops of groups were counted."""
        return self.most if self.counted is None else self.counted


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The places of buffers in the arenas: one on the host, and one on each other device.

    places: byte offsets. total: bytes of the host's arena. over: for each group, the buffers it
    reads that its last result may overwrite, as its kernel allows. elsewhere: bytes of every other
    device's arena. inside: where the arenas of a step's nested plans begin.
    """

    places: Mapping[Buffer, int]
    total: int
    over: Mapping[FusionGroup, tuple[Buffer, ...]] = field(default_factory=dict)
    elsewhere: Mapping[str, int] = field(default_factory=dict)
    inside: Mapping[Control, int] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Plan:
    """A graph as steps in execution order.

    graph: provides the name, inputs, outputs and constants; a parsed plan's graph has no
    operations. buffers: of every value that native code uses. data: the constants' contents,
    row-major in the buffer's shape. devices: of the buffers that are not on the host. memory: set
    once kernels are known. open: sizes known only at run time.
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
        """The steps that run in Python."""
        return tuple(s for s in self.steps if isinstance(s, HostFallback))

    @cached_property
    def given(self) -> frozenset[Buffer]:
        """The values that exist before the first step: inputs and constants."""
        values = (*self.graph.inputs, *self.graph.constants)
        return frozenset(self.buffers[v] for v in values if v in self.buffers)

    @cached_property
    def results(self) -> tuple[Buffer, ...]:
        """The outputs of the model, in order."""
        return tuple(self.buffers[v] for v in self.graph.outputs if v in self.buffers)

    @cached_property
    def kept(self) -> frozenset[Buffer]:
        """Buffers that no pass may change: results, and those that steps other than groups use."""
        others = (s for s in self.steps if not isinstance(s, FusionGroup))
        used = (b for s in others for b in (*s.reads, *s.writes))
        return frozenset((*self.results, *used))

    @cached_property
    def named_values(self) -> tuple[Value, ...]:
        """Inputs, constants, outputs, and operands of whole operators: never private to a group."""
        graph = self.graph
        found = [*graph.inputs, *graph.constants, *graph.outputs]
        for step in self.steps:
            if isinstance(step, HostFallback | DeviceCall):
                found += step.operation.reads
                found += step.operation.writes
        return tuple(dict.fromkeys(found))

    @cached_property
    def live(self) -> Mapping[FusionGroup, frozenset[Buffer]]:
        """For each group, the buffers that another step or the caller uses."""
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
        """The device of a buffer's memory."""
        return self.devices.get(buffer, HOST)

    def touched(self, step: Step) -> tuple[Buffer, ...]:
        """The buffers in memory that a step uses: those it reads, then its live results.

        Only Computations may keep some results out of memory.
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
        """The plan with further constants for its steps; itself if there are none."""
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
    """Which groups write and which read each buffer in a plan; other steps are ignored."""

    def __init__(self, groups: Iterable[Step]) -> None:
        self.writers: dict[Buffer, list[FusionGroup]] = {}
        self.readers: dict[Buffer, list[FusionGroup]] = {}
        for group in groups:
            if isinstance(group, FusionGroup):
                self.add(group)

    def add(self, group: FusionGroup) -> None:
        """Add a group."""
        for b in group.writes:
            self.writers.setdefault(b, []).append(group)
        for b in group.reads:
            self.readers.setdefault(b, []).append(group)

    def remove(self, group: FusionGroup) -> None:
        """Remove a group."""
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
    """Two lists of operators' names joined, in order, without duplicates, SOURCES of them at most.

    Duplicates occur if two readers of an operator's result are merged again.
    """
    return tuple(dict.fromkeys((*first, *second)))[:SOURCES]


def merge(
    first: FusionGroup, second: FusionGroup, computations: Sequence[Computation]
) -> FusionGroup:
    """One group with the given Computations, named after both groups."""
    short = f"{first.name}+{second.name.rsplit('.', 1)[-1]}"
    name = short if len(short) <= 60 else first.name
    return FusionGroup(
        name,
        tuple(computations),
        joined(first.sources, second.sources),
        first.flops + second.flops,
    )
