"""Simulating a schedule element by element, with FIFOs of limited size.

The rules of a task, with r(k) the cycle in which it reads its k-th elements, one from each in-edge,
and w(j) the cycle at whose start its j-th output is available, on all out-edges (k, j from 1):

* it reads when an element is available on every in-edge, at most one per cycle, and not before all
  outputs of its earlier inputs have been written: r(k) >= w(floor((k-1) O / I)), r(k) > r(k-1);
* output j needs the first ceil(j I / O) inputs: w(j) > r(ceil(j I / O)), w(j) > w(j-1);
* a FIFO of c elements accepts the j-th when its reader takes the (j-c)-th, or later:
  w(j) >= r'(j - c);
* data through memory is available when its writer, or the buffer before it, has ended, and writes
  to memory or into a buffer never wait;
* no task starts before its block; in a gang schedule a block starts after the previous one's end.

The tasks of a node with several behave identically, so only one of them is simulated, and of
several turns only the first. All times follow from these inequalities alone, each the least that
satisfies them, so the order in which tasks advance does not matter: each runs until it lacks an
element or room. `sweep` finds the same times for whole streams at once; if that does not converge,
above all in a deadlock, which must be reported, the simulation is done element by element.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ExecutionError, InputError
from tilewright.dataflow.graph import Role, TaskGraph
from tilewright.dataflow.schedule import Discipline, TaskSchedule
from tilewright.dataflow.sweep import sweep


@dataclass(frozen=True, slots=True)
class Simulation:
    """The cycles in which each node started and ended, and the makespan."""

    start: Sequence[int]
    last: Sequence[int]
    makespan: int


def simulate(schedule: TaskSchedule, fifos: Sequence[int] | None = None) -> Simulation:
    """Simulate `schedule` with its own FIFO sizes, or `fifos` (elements per edge).

    Takes time proportional to the elements moved. Raises ExecutionError on a deadlock, naming the
    waiting tasks, what they wait for, and the full or empty streams; InputError unless there is one
    size for each edge of the schedule's graph.
    """
    edges = len(schedule.graph.edges)
    if fifos is not None and len(fifos) != edges:
        raise InputError(
            f"{len(fifos)} sizes of FIFOs for {edges} edges",
            where=f"task graph {schedule.graph.name}",
            hint="give one for each edge, 0 where nothing streams, as Schedule.fifos does",
        )
    run = _Run(schedule, schedule.fifos if fifos is None else fifos)
    for block in schedule.blocks:
        if not run.sweep(block):
            run.block(block)
    return Simulation(run.start, run.last, max(run.last, default=0))


class _Stream:
    """A FIFO: when each element was written and read, so far."""

    __slots__ = ("read", "room", "written")

    def __init__(self, room: int) -> None:
        self.room = room
        self.written: list[int] = []
        self.read: list[int] = []


class _Task:
    """A running task: how far it has read and written."""

    __slots__ = (
        "consumed",
        "into",
        "node",
        "out",
        "produced",
        "read",
        "ready",
        "wrote",
    )

    def __init__(
        self, node: int, graph: TaskGraph, streams: dict[int, _Stream], ready: int
    ):
        self.node = node
        self.consumed = graph.consumed[node]
        self.produced = graph.produced[node]
        self.into = [streams[e] for e in graph.ins[node] if e in streams]
        self.out = [streams[e] for e in graph.outs[node] if e in streams]
        self.ready = ready
        self.read: list[int] = []
        self.wrote: list[int] = []

    def advance(self) -> bool:
        """Read and write as far as elements and room allow; returns whether anything happened."""
        before = len(self.read) + len(self.wrote)
        while self._write() or self._read():
            pass
        return len(self.read) + len(self.wrote) > before

    @property
    def done(self) -> bool:
        if len(self.wrote) != self.produced:
            return False
        return len(self.read) == self.consumed

    def _owed(self) -> int:
        """The outputs due after the inputs read so far."""
        return len(self.read) * self.produced // self.consumed

    def _read(self) -> bool:
        k = len(self.read)
        if k == self.consumed:
            return False
        if len(self.wrote) < self._owed():
            return False
        if any(len(s.written) <= k for s in self.into):
            return False
        if k:
            when = self.read[-1] + 1
        else:
            when = self.ready
        if self.wrote:
            when = max(when, self.wrote[-1])
        for s in self.into:
            when = max(when, s.written[k])
        self.read.append(when)
        for s in self.into:
            s.read.append(when)
        return True

    def _write(self) -> bool:
        j = len(self.wrote)
        if j >= self._owed():
            return False
        if any(len(s.read) <= j - s.room for s in self.out):
            return False
        when = self.read[-1] + 1
        if j:
            when = max(when, self.wrote[-1] + 1)
        for s in self.out:
            if j >= s.room:
                when = max(when, s.read[j - s.room])
        self.wrote.append(when)
        for s in self.out:
            s.written.append(when)
        return True


class _Run:
    """The simulation of one block after another."""

    def __init__(self, schedule: TaskSchedule, fifos: Sequence[int]) -> None:
        self.schedule = schedule
        self.graph = schedule.graph
        self.fifos = fifos
        self.start = [0] * len(self.graph.nodes)
        self.last = [0] * len(self.graph.nodes)
        self.free = [0] * schedule.pes
        self.tasks: dict[int, _Task] = {}

    def sweep(self, nodes: Sequence[int]) -> bool:
        """Simulate a block by sweeps; returns False, with no effect, if they do not converge."""
        turns = self.schedule.turns
        if len(nodes) > 1 and any(turns[n] > 1 for n in nodes):
            return False
        rooms = {e: s.room for e, s in self._streams(nodes).items()}
        openings = {n: self._opening(n) for n in nodes}
        spans = sweep(self.graph, nodes, rooms, openings, self.last)
        if spans is None:
            return False
        for n, span in spans.items():
            self.start[n] = span.start
            self.last[n] = span.last + (span.last - openings[n]) * (turns[n] - 1)
        self._release(nodes)
        return True

    def block(self, nodes: Sequence[int]) -> None:
        """Advance the nodes of a block, each when something it waits for has happened."""
        streams = self._streams(nodes)
        left = set(nodes)
        queue = deque(nodes)
        queued = set(nodes)
        while queue:
            n = queue.popleft()
            queued.discard(n)
            if n not in left:
                continue
            if not self._step(n, left, streams):
                continue
            if self._ended(n):
                left.discard(n)
            for other in (*self.graph.predecessors(n), *self.graph.successors(n)):
                if other in left and other not in queued:
                    queued.add(other)
                    queue.append(other)
        if left:
            raise self._deadlock(streams, [n for n in nodes if n in left])
        self._release(nodes)

    def _streams(self, nodes: Sequence[int]) -> dict[int, _Stream]:
        """The FIFOs between the tasks of a block; writes into a buffer never wait."""
        streams = {}
        for n in nodes:
            if self.graph.nodes[n].role is Role.COMPUTE:
                for e in self.graph.ins[n]:
                    if self.schedule.steady.streams[e]:
                        streams[e] = _Stream(self.fifos[e])
        return streams

    def _step(self, n: int, left: set[int], streams: dict[int, _Stream]) -> bool:
        """Start a node whose stored inputs are complete, or continue it; whether it progressed."""
        if n in self.tasks:
            return self.tasks[n].advance()
        memory = [
            self.graph.edges[e].source for e in self.graph.ins[n] if e not in streams
        ]
        if any(u in left for u in memory):
            return False
        ready = max((self.last[u] for u in memory), default=0)
        if self.graph.nodes[n].role is not Role.COMPUTE:
            self.start[n] = self.last[n] = max(ready, self._opening(n))
            return True
        self.tasks[n] = _Task(n, self.graph, streams, max(ready, self._opening(n)))
        self.tasks[n].advance()
        return True

    def _opening(self, n: int) -> int:
        """The cycle from which a node's processing element is available."""
        if self.schedule.discipline is Discipline.GANG:
            return max(self.free)
        element = self.schedule.element[n]
        if element >= 0:
            return self.free[element]
        return 0

    def _ended(self, n: int) -> bool:
        if n not in self.tasks:
            return True
        task = self.tasks[n]
        if not task.done:
            return False
        begin = self._opening(n)
        end = task.wrote[-1]
        self.start[n] = task.read[0]
        self.last[n] = end + (end - begin) * (self.schedule.turns[n] - 1)
        return True

    def _release(self, nodes: Sequence[int]) -> None:
        """Free the elements of a block that has ended."""
        for n in nodes:
            if self.schedule.element[n] >= 0:
                first = self.schedule.element[n]
                count = self.graph.nodes[n].count
                side = count // self.schedule.turns[n]
                self.free[first : first + side] = [self.last[n]] * side
        if self.schedule.discipline is Discipline.GANG:
            self.free = [max(self.free)] * len(self.free)
        self.tasks.clear()

    def _deadlock(
        self, streams: dict[int, _Stream], stuck: Sequence[int]
    ) -> ExecutionError:
        """Describe which tasks wait for what."""
        full, empty = [], []
        for e, stream in streams.items():
            edge = self.graph.edges[e]
            source, target = (
                self.graph.nodes[n].name for n in (edge.source, edge.target)
            )
            held = len(stream.written) - len(stream.read)
            if edge.source in stuck and held >= stream.room:
                full.append(
                    f"{source} waits for room on {source} -> {target} ({held} held)"
                )
            elif edge.target in stuck and held == 0:
                empty.append(f"{target} waits for an element of {source}")
        reasons = [*full, *empty]
        return ExecutionError(
            f"a deadlock of {len(stuck)} tasks: {'; '.join(reasons[:4])}",
            where=f"task graph {self.graph.name}",
            hint="enlarge the FIFOs that are full: Schedule.fifos has sizes that suffice",
        )
