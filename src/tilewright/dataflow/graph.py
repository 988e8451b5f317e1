"""Canonical task graphs: tasks that read and write streams at fixed rational rates.

De Matteis, Gianinazzi, de Fine Licht, Hoefler, "Streaming Task Graph Scheduling for Dataflow
Architectures", HPDC 2023. A task reads the same number of elements on each of its in-edges and
writes the same number on each of its out-edges; the quotient is its production rate.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from typing import Final, TypeVar

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError

MAX_VOLUME: Final = 1 << 62
_E = TypeVar("_E", bound=StrEnum)
_NAME: Final = re.compile(r"[A-Za-z0-9_.:+/\[\],-]+")


class Volume(StrEnum):
    """The meaning of an edge's volume.

    part: the elements that its two tasks themselves move.
    array: the size of the whole array that the edge's tasks share; if several tasks write one
    array, each of their edges counts all of it.
    """

    PART = "part"
    ARRAY = "array"


class Role(StrEnum):
    """compute occupies a processing element; buffer stores its complete input before its first
    output; source and sink are outside memory."""

    COMPUTE = "compute"
    BUFFER = "buffer"
    SOURCE = "source"
    SINK = "sink"


class Kind(StrEnum):
    """A node's type under one reading of the volumes: its role, or a task's class of rate."""

    ELEMENTWISE = "element-wise"
    DOWNSAMPLER = "downsampler"
    UPSAMPLER = "upsampler"
    BUFFER = "buffer"
    SOURCE = "source"
    SINK = "sink"

    @property
    def role(self) -> Role:
        """The role of a node of this kind."""
        return _ROLES.get(self, Role.COMPUTE)


_ROLES: Final = {
    Kind.BUFFER: Role.BUFFER,
    Kind.SOURCE: Role.SOURCE,
    Kind.SINK: Role.SINK,
}
_KINDS: Final = {role: kind for kind, role in _ROLES.items()}


@dataclass(frozen=True, slots=True)
class Node:
    """A task or a memory; `origin` names its operator and loop.

    count: the number of equal tasks it stands for. Each has all edges of the node, so an edge
    between nodes of a and b tasks stands for a * b edges; `copies.expanded` returns the graph
    without counts.
    """

    name: str
    role: Role = Role.COMPUTE
    origin: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Edge:
    """A stream between two nodes, given by their indices.

    part: its length; array: the size of the array shared with other tasks, at least `part`; unique:
    the number of different elements in the part, for a stream that replays what is held.
    """

    source: int
    target: int
    part: int
    array: int
    unique: int

    def volume(self, reading: Volume) -> int:
        """The number of elements under a reading."""
        if reading is Volume.PART:
            return self.part
        return self.array


class TaskGraph:
    """A checked canonical task graph. The order of the nodes decides ties in a schedule.

    volume: the reading of the edges that everything below uses; `reading` returns the graph under
    the other. Raises InputError, naming the nodes or edges, for duplicate names, volumes below 1, a
    cycle, a source that reads, a sink that writes, a task that does not do both, and edges that
    violate the canonical property.
    """

    def __init__(
        self,
        name: str,
        nodes: Iterable[Node],
        edges: Iterable[Edge],
        volume: Volume | str,
    ) -> None:
        self.name: Final = name
        self.nodes: Final = tuple(nodes)
        self.edges: Final = tuple(edges)
        self.volume: Final = named(Volume, volume)
        self._check_names()
        self._check_edges()
        ins: list[list[int]] = [[] for _ in self.nodes]
        outs: list[list[int]] = [[] for _ in self.nodes]
        for n, e in enumerate(self.edges):
            outs[e.source].append(n)
            ins[e.target].append(n)
        self.ins: Final[Sequence[Sequence[int]]] = ins
        self.outs: Final[Sequence[Sequence[int]]] = outs
        self.consumed: Final = [
            self._common(n, ins[n], "reads") for n in range(len(self.nodes))
        ]
        self.produced: Final = [
            self._common(n, outs[n], "writes") for n in range(len(self.nodes))
        ]
        self._check_roles()
        self.order: Final = self._sorted()

    def reading(self, volume: Volume | str) -> TaskGraph:
        """The same graph under the reading `volume` ("part" or "array")."""
        return TaskGraph(self.name, self.nodes, self.edges, volume)

    def volume_of(self, edge: int) -> int:
        """The number of elements of an edge under this graph's reading."""
        return self.edges[edge].volume(self.volume)

    def predecessors(self, node: int) -> list[int]:
        """The nodes whose edges enter `node`."""
        return [self.edges[e].source for e in self.ins[node]]

    def successors(self, node: int) -> list[int]:
        """The nodes that edges of `node` enter."""
        return [self.edges[e].target for e in self.outs[node]]

    def rate(self, node: int) -> Fraction:
        """Elements written per element read; 1 for outside memory."""
        if self.nodes[node].role in (Role.SOURCE, Role.SINK):
            return Fraction(1)
        return Fraction(self.produced[node], self.consumed[node])

    def kind(self, node: int) -> Kind:
        """The node's type: its role, or for tasks the class of its rate."""
        role = self.nodes[node].role
        if role is not Role.COMPUTE:
            return _KINDS[role]
        rate = self.rate(node)
        if rate == 1:
            return Kind.ELEMENTWISE
        return Kind.DOWNSAMPLER if rate < 1 else Kind.UPSAMPLER

    @cached_property
    def work(self) -> list[int]:
        """Cycles that each node needs alone: the larger of its volumes; 0 for memory."""
        return [
            max(self.consumed[n], self.produced[n]) if node.role is Role.COMPUTE else 0
            for n, node in enumerate(self.nodes)
        ]

    @cached_property
    def tasks(self) -> int:
        """The number of tasks, each of which occupies a processing element."""
        return sum(n.count for n in self.nodes if n.role is Role.COMPUTE)

    @cached_property
    def streams(self) -> int:
        """The number of edges between single tasks."""
        return sum(
            self.nodes[e.source].count * self.nodes[e.target].count for e in self.edges
        )

    @cached_property
    def total_work(self) -> int:
        """Cycles of all tasks, one after the other."""
        return sum(w * n.count for w, n in zip(self.work, self.nodes, strict=True))

    def io(self, free: Container[str] = ()) -> int:
        """Elements that all tasks read and write, without replays and independent of the reading.

        A multicast is one write. Reads from the sources in `free` do not count.
        """
        total = 0
        for n, node in enumerate(self.nodes):
            if node.role is Role.COMPUTE:
                read = (self.edges[e] for e in self.ins[n])
                moved = sum(
                    e.unique * self.nodes[e.source].count
                    for e in read
                    if self.nodes[e.source].name not in free
                )
                moved += max(self.edges[e].unique for e in self.outs[n])
                total += moved * node.count
        return total

    def __repr__(self) -> str:
        return (
            f"TaskGraph({self.name}: {self.tasks} tasks, {self.streams} edges, "
            f"volume={self.volume})"
        )

    # ---------------------------------------------------------------------------------- checks

    def _error(self, message: str, hint: str) -> InputError:
        return InputError(message, where=f"task graph {self.name}", hint=hint)

    def _check_names(self) -> None:
        seen: set[str] = set()
        for node in self.nodes:
            if not _NAME.fullmatch(node.name):
                raise self._error(
                    f"the node name {node.name!r} has characters outside {_NAME.pattern}",
                    "rename it",
                )
            if node.name in seen:
                raise self._error(
                    f"two nodes are named {node.name}", "names must be unique"
                )
            seen.add(node.name)
            number = type(node.count) is int and node.count >= 1
            if not number or (node.count > 1 and node.role is not Role.COMPUTE):
                raise self._error(
                    f"{node.role} {node.name} has a count of {node.count!r}",
                    "a compute node has at least one task, memory exactly one",
                )

    def _check_edges(self) -> None:
        count = len(self.nodes)
        for e in self.edges:
            if not (0 <= e.source < count and 0 <= e.target < count):
                raise self._error(
                    f"the edge {e.source} -> {e.target} names a node outside 0..{count - 1}",
                    "an edge has two indices into the list of nodes",
                )
            numbers = {type(e.unique), type(e.part), type(e.array)} == {int}
            if not numbers or not 1 <= e.unique <= e.part <= e.array <= MAX_VOLUME:
                raise self._error(
                    f"the edge {self._show(e)} carries {e.part!r} elements ({e.unique!r} unique) "
                    f"of an array of {e.array!r}",
                    f"whole numbers from 1 to {MAX_VOLUME}, unique <= part <= array",
                )

    def _common(self, node: int, edges: Sequence[int], verb: str) -> int:
        """The volume shared by a node's edges of one direction; sources and sinks are exempt."""
        volumes = {self.volume_of(e) for e in edges}
        memory = self.nodes[node].role in (Role.SOURCE, Role.SINK)
        if len(volumes) > 1 and not memory:
            low, high = (
                next(e for e in edges if self.volume_of(e) == v)
                for v in (min(volumes), max(volumes))
            )
            raise self._error(
                f"{self.nodes[node].name} {verb} {self.volume_of(low)} elements on "
                f"{self._show(self.edges[low])} and {self.volume_of(high)} on "
                f"{self._show(self.edges[high])} (volume={self.volume})",
                "all edges of one direction of a task carry the same volume: put a buffer between",
            )
        return max(volumes, default=0)

    def _check_roles(self) -> None:
        needs = {
            Role.COMPUTE: (True, True),
            Role.BUFFER: (True, True),
            Role.SOURCE: (False, True),
            Role.SINK: (True, False),
        }
        for n, node in enumerate(self.nodes):
            found = (bool(self.ins[n]), bool(self.outs[n]))
            if found == needs[node.role]:
                continue
            for side, want, have in zip(
                ("in", "out"), needs[node.role], found, strict=True
            ):
                if want != have:
                    raise self._error(
                        f"{node.role} {node.name} has {'no' if want else 'an'} {side}-edge",
                        "a compute node and a buffer have both, a source writes, a sink reads",
                    )

    def _sorted(self) -> list[int]:
        """The nodes in topological order: as they become ready."""
        missing = [len(edges) for edges in self.ins]
        order = [n for n, m in enumerate(missing) if m == 0]
        for n in order:
            for e in self.outs[n]:
                target = self.edges[e].target
                missing[target] -= 1
                if missing[target] == 0:
                    order.append(target)
        if len(order) < len(self.nodes):
            raise self._error(
                f"a cycle: {' -> '.join(self._cycle(missing))}",
                "a task graph must be acyclic: unroll the loop, or cut it at a source and a sink",
            )
        return order

    def _cycle(self, missing: Sequence[int]) -> list[str]:
        """The names along one cycle among the nodes with missing inputs."""
        at = next(n for n, m in enumerate(missing) if m)
        met: dict[int, int] = {}
        while at not in met:
            met[at] = len(met)
            at = next(p for p in self.predecessors(at) if missing[p])
        loop = [*list(met)[met[at] :], at]
        return [self.nodes[n].name for n in reversed(loop)]

    def _show(self, e: Edge) -> str:
        return f"{self.nodes[e.source].name} -> {self.nodes[e.target].name}"


def named(kind: type[_E], value: str) -> _E:
    """The member of `kind` named `value`. Raises InputError, listing them, for another name."""
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(kind)
        raise InputError(
            f"no {kind.__name__.lower()} {value!r}", hint=f"known: {known}"
        ) from None
