"""From tasks to their graph: where a tensor streams, and where it is stored.

A result that is read element after element in the order in which its only writer gives it streams.
Everything else goes through a buffer; one for each volume that its writers or readers move, so that
the graph is canonical. What several tasks read whole and in order from a buffer is read once, by a
feeder that sends it to all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from tilewright.compute.nodes import Computation, Dim, Output
from tilewright.dataflow.builder import Builder
from tilewright.dataflow.graph import TaskGraph, Volume
from tilewright.dataflow.parts import (
    points,
    reads_in_order,
    restrict,
    results,
    touched,
    writes_in_order,
)
from tilewright.dataflow.pieces import Piece
from tilewright.dataflow.program import Task, computing
from tilewright.expr.nodes import INDEX, Buffer, Load, Var
from tilewright.ir.node import postorder, substitute


def tasks_of(name: str, origin: str, piece: Piece) -> list[Task]:
    """The tasks of a piece; `name` goes before their labels."""
    stem = f"{name}.{piece.label}" if piece.label else name
    found = []
    for n, cuts in enumerate(piece.parts()):
        label = f"{stem}{n}" if piece.tasks > 1 else stem
        c = restrict(piece.computation, cuts, label)
        loops = "/".join(v.name for v in piece.spread)
        reads = results(c) if piece.joins else points(c)
        found.append(
            Task(
                label,
                f"{origin}/{loops}" if loops else origin,
                c.inputs,
                tuple(dict.fromkeys(o.tensor for o in c.outputs)),
                reads,
                results(c),
                {b: min(reads, touched(c, b)) if piece.holds else reads for b in c.inputs},
                computing(c),
                c,
                piece.joins,
                piece.stores,
            )
        )
    return found


def fed(tasks: Sequence[Task]) -> list[Task]:
    """The tasks with a feeder before every tensor that several of them read whole and in order."""
    writers: dict[Buffer, list[Task]] = {}
    for t in tasks:
        for b in t.outputs:
            writers.setdefault(b, []).append(t)
    result = list(tasks)
    for b in dict.fromkeys(b for t in tasks for b in t.inputs if b in writers):
        readers = [t for t in result if b in t.inputs]
        if len(readers) < 2 or _flows_from(writers[b]):
            continue
        if all(_flows_into(t, b) for t in readers):
            feeder = _feeder(b)
            first = result.index(readers[0])
            result = [_reading(t, b, feeder.outputs[0]) if t in readers else t for t in result]
            result.insert(first, feeder)
    return result


def _feeder(b: Buffer) -> Task:
    dims = tuple(Dim(Var(f"i{n}", INDEX), e) for n, e in enumerate(b.shape))
    index = tuple(d.var for d in dims)
    copy = Buffer(f"{b.name}_fed", b.shape, b.dtype)
    c = Computation("feeder", dims, (Output(copy, index, b[index]),))
    (task,) = tasks_of(b.name, b.name, Piece(c, "feeder"))
    return task


def _reading(task: Task, old: Buffer, new: Buffer) -> Task:
    """The task with one tensor read in place of another."""
    c = task.part
    assert c is not None
    swap: dict[object, object] = {
        n: new[n.index]
        for o in c.outputs
        for n in postorder(o.value)
        if isinstance(n, Load) and n.buffer is old
    }
    outputs = tuple(Output(o.tensor, o.index, substitute(o.value, swap)) for o in c.outputs)
    part = Computation(c.name, c.dims, outputs, c.reducer)
    unique = {new if b is old else b: count for b, count in task.unique.items()}
    return replace(task, inputs=part.inputs, unique=unique, run=computing(part), part=part)


def _flows_into(task: Task, b: Buffer) -> bool:
    return task.part is not None and not task.joins and reads_in_order(task.part, b)


def _flows_from(writers: Sequence[Task]) -> bool:
    if len(writers) != 1 or writers[0].stores or writers[0].part is None:
        return False
    return writes_in_order(writers[0].part)


def connect(
    name: str, tasks: Sequence[Task], outputs: Mapping[str, Buffer], volume: Volume | str
) -> TaskGraph:
    """The task graph of `tasks`, whose results `outputs` leave."""
    b = Builder(name)
    writers: dict[Buffer, list[Task]] = {}
    readers: dict[Buffer, list[Task]] = {}
    for t in tasks:
        for tensor in t.outputs:
            writers.setdefault(tensor, []).append(t)
        for tensor in t.inputs:
            readers.setdefault(tensor, []).append(t)
    for tensor in dict.fromkeys([*readers]):
        if tensor not in writers:
            b.source(tensor.name)
    for t in tasks:
        b.add(t.name, origin=t.origin)
    for tensor, users in readers.items():
        _edges(b, tensor, writers.get(tensor, ()), users)
    for label, tensor in outputs.items():
        b.sink(f"out:{label}")
        for t in writers.get(tensor, ()):
            b.connect(t.name, f"out:{label}", t.writes, array=max(t.writes, tensor.size))
    return b.build(volume)


def _edges(b: Builder, tensor: Buffer, writers: Sequence[Task], readers: Sequence[Task]) -> None:
    """The edges of one tensor, from its writers or the outside to its readers."""
    if not writers:
        for r in readers:
            b.connect(tensor.name, r.name, r.reads, unique=r.unique[tensor])
        return
    flows = _flows_from(writers)
    direct = [r for r in readers if r.joins or (flows and _flows_into(r, tensor))]
    for r in direct:
        for w in writers:
            b.connect(w.name, r.name, w.writes, array=tensor.size)
    stored = [r for r in readers if r not in direct]
    for taken in _groups(stored, lambda t: t.reads):
        for given in _groups(writers, lambda t: t.writes):
            name = b.fresh(tensor.name)
            b.buffer(name, origin=tensor.name)
            for w in given:
                b.connect(w.name, name, w.writes, array=tensor.size)
            for r in taken:
                b.connect(name, r.name, r.reads, unique=r.unique[tensor])


def _groups(tasks: Collection[Task], volume: Callable[[Task], int]) -> list[list[Task]]:
    """The tasks that move the same volume together."""
    by_volume = sorted(tasks, key=volume)
    return [list(group) for _, group in groupby(by_volume, volume)]
