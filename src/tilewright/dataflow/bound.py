"""A lower bound on the cycles of all combinations of expansions, for N processing elements.

The proof, for the schedules of this package: a task with work w occupies a processing element for
at least w cycles. So m equal tasks on P elements take at least max(w, m w / P) from the start of
the first to the end of the last. A task that reads a stored tensor starts after all its writers
have ended; one that reads a stream neither starts nor ends before its writer does. By induction
along the network, `start` and `end` of every tensor are bounded from below for each expansion of
the operator that writes it; a reader uses the least bound over the writer's expansions, which holds
for any choice. Operators of one group are bounded as if each could choose freely, which only lowers
the bound.

Two area bounds are added. All tasks together take at least their work over P. And if operator s
starts only after d has ended, all operators that start after d and end before s starts share P
elements in between: s starts no earlier than the end of d plus their least work over P.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.dataflow.assemble import connect
from tilewright.dataflow.graph import Role, TaskGraph, Volume
from tilewright.dataflow.lower import OperatorNetwork
from tilewright.dataflow.program import TaskGroup
from tilewright.expr.nodes import Buffer
from tilewright.plan.nodes import FusionGroup


@dataclass(frozen=True, slots=True)
class _Times:
    """Lower bounds for a tensor under one expansion of its writer: the start of the first task and
    the end of the last one. flows: whether it can be read as a stream."""

    start: int
    end: int
    flows: bool


@dataclass(frozen=True, eq=False)
class _SingleExpansion:
    """An operator under one expansion, alone.

    outside: the tensor of each source of the graph. ordered: (tensor, task) pairs that could
    stream. flows: the results that could stream. entries: the tasks that read none of the
    operator's own tensors. writers: the tasks of each result.
    """

    graph: TaskGraph
    outside: Mapping[int, Buffer]
    ordered: Set[tuple[Buffer, int]]
    flows: Set[Buffer]
    entries: Sequence[int]
    writers: Mapping[Buffer, Sequence[int]]


def _form(
    group: FusionGroup,
    tasks: Sequence[TaskGroup],
    volume: Volume,
    same: Mapping[Buffer, Buffer],
) -> _SingleExpansion:
    made = {b for t in tasks for b in t.outputs}
    written = [b for b in group.writes if b in made]
    graph = connect(group.name, tasks, {b.name: b for b in written}, volume, same)
    index = {node.name: n for n, node in enumerate(graph.nodes)}
    read: set[Buffer] = set()
    ordered: set[tuple[Buffer, int]] = set()
    entries: list[int] = []
    for t in tasks:
        node = index[t.name]
        for b in t.inputs:
            tensor = same.get(b, b)
            read.add(tensor)
            if t.flows_into(b):
                ordered.add((tensor, node))
        if made.isdisjoint(t.inputs):
            entries.append(node)
    flows: set[Buffer] = set()
    writers: dict[Buffer, Sequence[int]] = {}
    for b in written:
        own = [t for t in tasks if b in t.outputs]
        writers[b] = [index[t.name] for t in own]
        if len(own) == 1 and own[0].flows_out:
            flows.add(b)
    outside = {index[b.name]: b for b in read - made}
    return _SingleExpansion(graph, outside, ordered, flows, entries, writers)


class Bounds:
    """The bounds of a network, with the expansions `options[name]` for each operator."""

    def __init__(
        self, net: OperatorNetwork, options: Mapping[str, Sequence[str]], volume: Volume
    ) -> None:
        self._groups: Final = net.stages
        self._forms: Final = [
            [
                _form(s, net.tasks(s, option), volume, net.same)
                for option in options[s.name]
            ]
            for s in self._groups
        ]
        self._same: Final = net.same
        self._least: Final = [
            min(f.graph.total_work for f in forms) for forms in self._forms
        ]
        self._writers: Final[dict[Buffer, list[int]]] = {}
        for n, stage in enumerate(self._groups):
            for tensor in stage.writes:
                self._writers.setdefault(tensor, []).append(n)
        self._final: Final = [_final(s) for s in self._groups]
        self._ended: Final = self._barriers()

    def makespan(self, pes: int) -> int:
        """A lower bound, at least 1, on the makespan of every combination on `pes` elements."""
        times: dict[Buffer, list[list[_Times]]] = {}
        ends: list[int] = []
        for n, group in enumerate(self._groups):
            floor = self._floor(n, ends, pes)
            found = [_run(form, times, floor, pes) for form in self._forms[n]]
            last = [max(t.end for t in made.values()) for made in found]
            ends.append(min(last))
            for tensor in group.writes:
                kept = [made[tensor] for made in found if tensor in made]
                times.setdefault(tensor, []).append(kept)
        of_area = _share(sum(self._least), pes)
        return max(1, of_area, *ends)

    def _floor(self, n: int, ends: Sequence[int], pes: int) -> int:
        """The earliest start of an operator, by the work between it and one that ended before."""
        best = 0
        ended = self._ended[n]
        for d in ended:
            between = [x for x in ended if d in self._ended[x]]
            work = sum(self._least[x] for x in between)
            best = max(best, ends[d] + _share(work, pes))
        return best

    def _barriers(self) -> list[Set[int]]:
        """For each operator, the operators that have ended before its first task, for any choice.

        A task starts after everything that its writers start after; if it reads a stored tensor,
        also after its writers and everything they read, directly or not. An operator does not count
        as ended if the tensor is not its only final result, because it may end later.
        """
        ended: list[Set[int]] = []
        below: list[Set[int]] = []  # operators that end no later than it does
        for n, group in enumerate(self._groups):
            sets: list[frozenset[int]] = []
            for form in self._forms[n]:
                for task in form.entries:
                    before = [
                        self._before(form.outside[u], task, form, ended, below)
                        for u in _sources(form, task)
                    ]
                    sets.append(frozenset[int]().union(*before))
            ended.append(frozenset.intersection(*sets) if sets else frozenset())
            known = {n}
            for tensor in group.reads:
                for writer in self._final_writers(tensor):
                    if writer < n:
                        known |= below[writer]
            below.append(known)
        return ended

    def _before(
        self,
        tensor: Buffer,
        task: int,
        form: _SingleExpansion,
        ended: Sequence[Set[int]],
        below: Sequence[Set[int]],
    ) -> Set[int]:
        """The operators that have ended before a task that reads `tensor` starts."""
        found: Set[int] = frozenset()
        streams = (tensor, task) in form.ordered
        for w in self._writers.get(tensor, ()):
            found |= ended[w]
            flows = streams and any(tensor in f.flows for f in self._forms[w])
            if self._final[w] is tensor and not flows:
                found |= below[w]
        return found

    def _final_writers(self, tensor: Buffer) -> list[int]:
        made = self._same.get(tensor, tensor)
        return [w for w in self._writers.get(made, ()) if self._final[w] is made]


def _final(stage: FusionGroup) -> Buffer | None:
    """The result that all the operator's other tensors lead to; None if there are several."""
    inside = {b for c in stage.computations for b in c.inputs}
    found = [b for b in stage.writes if b not in inside]
    if len(found) == 1:
        return found[0]
    return None


def _sources(form: _SingleExpansion, task: int) -> list[int]:
    return [u for u in form.graph.predecessors(task) if u in form.outside]


def _run(
    form: _SingleExpansion,
    times: Mapping[Buffer, Sequence[Sequence[_Times]]],
    floor: int,
    pes: int,
) -> dict[Buffer, _Times]:
    """The times of an operator's results under one expansion, if none of its tasks starts before
    `floor`."""
    graph = form.graph
    start = [floor] * len(graph.nodes)
    end = [floor] * len(graph.nodes)
    for n in graph.order:
        node = graph.nodes[n]
        if node.role is Role.SOURCE:
            continue
        for u in graph.predecessors(n):
            if u in form.outside:
                first, last = _arrival(form, times, form.outside[u], n)
            else:
                last = end[u]
                ends = (node.role, graph.nodes[u].role)
                if ends == (Role.COMPUTE, Role.COMPUTE):
                    first = start[u]
                else:
                    first = last
            start[n] = max(start[n], first)
            end[n] = max(end[n], last)
        work = graph.work[n]
        shared = _share(work * node.count, pes)
        end[n] = max(end[n], start[n] + max(work, shared))
    found = {}
    for tensor, writers in form.writers.items():
        first = min(start[w] for w in writers)
        last = max(end[w] for w in writers)
        found[tensor] = _Times(first, last, tensor in form.flows)
    return found


def _arrival(
    form: _SingleExpansion,
    times: Mapping[Buffer, Sequence[Sequence[_Times]]],
    tensor: Buffer,
    task: int,
) -> tuple[int, int]:
    """The cycles before which a task that reads a tensor cannot start, and cannot end."""
    ordered = (tensor, task) in form.ordered
    first = 0
    last = 0
    for forms in times.get(tensor, ()):
        there = [t.start if ordered and t.flows else t.end for t in forms]
        ends = [t.end for t in forms]
        first = max(first, min(there))
        last = max(last, min(ends))
    return first, last


def _share(work: int, pes: int) -> int:
    return -(-work // pes)
