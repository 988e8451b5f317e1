"""From tasks to a task graph: which tensors are streamed, and which are stored.

A result streams if it has one writer and is read element by element in the order in which it is
written. Everything else goes through a buffer; one for each volume that its writers or readers
move, so that the graph is canonical. If several tasks read all of a buffer in order, a feeder reads
it once and sends it to all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TypeVar

from tilewright.base.dataclass import dataclass
from tilewright.compute.nodes import Computation, Dim, Output
from tilewright.compute.transforms import map_loads
from tilewright.dataflow.builder import TaskGraphBuilder
from tilewright.dataflow.graph import TaskGraph, Volume
from tilewright.dataflow.parts import (
    Cuts,
    points,
    reads_in_order,
    restrict,
    results,
    touched,
)
from tilewright.dataflow.pieces import ComputationTasks
from tilewright.dataflow.program import TaskGroup
from tilewright.expr.nodes import INDEX, Buffer, Expr, Load, Var
from tilewright.ir.node import postorder

_T = TypeVar("_T")


def tasks_of(name: str, origin: str, piece: ComputationTasks) -> list[TaskGroup]:
    """The tasks of a piece, with equal ones as one TaskGroup; `name` prefixes their labels."""
    c = piece.computation
    stem = f"{name}.{piece.label}" if piece.label else name
    loops = "/".join(v.name for v in piece.spread)
    return [
        TaskGroup(
            stem,
            f"{origin}/{loops}" if loops else origin,
            c,
            shape.reads,
            shape.writes,
            dict(zip(c.inputs, shape.unique, strict=True)),
            cuts,
            piece.joins,
            piece.stores,
        )
        for shape, cuts in _equal_parts(piece).items()
    ]


@dataclass(frozen=True, slots=True)
class _Shape:
    """What makes tasks equal. ordered: whether each input is read element by element."""

    reads: int
    writes: int
    unique: tuple[int, ...]
    ordered: tuple[bool, ...]


def _equal_parts(piece: ComputationTasks) -> dict[_Shape, list[Cuts]]:
    """Group the parts of a piece by the shapes of their tasks.

    Parts of one size that differ only in variables that index a tensor directly are equal; the
    others are analyzed one by one.
    """
    c = piece.computation
    plain = {i for load in c.accesses for i in load.index if isinstance(i, Var)}
    mixed = {
        v
        for load in c.accesses
        for i in load.index
        if i not in plain
        for v in postorder(i)
        if v in piece.spread
    }
    alike: dict[tuple[tuple[int, int], ...], list[Cuts]] = {}
    for cuts in piece.parts():
        key = tuple(
            (cuts[v][1] - cuts[v][0], cuts[v][0] * (v in mixed)) for v in piece.spread
        )
        alike.setdefault(key, []).append(cuts)
    found: dict[_Shape, list[Cuts]] = {}
    for cuts_of in alike.values():
        found.setdefault(_shape(piece, restrict(c, cuts_of[0], c.name)), []).extend(
            cuts_of
        )
    return found


def _shape(piece: ComputationTasks, part: Computation) -> _Shape:
    if piece.joins:
        reads = results(part)
    else:
        reads = points(part)
    inputs = piece.computation.inputs
    unique = (min(reads, touched(part, b)) if piece.holds else reads for b in inputs)
    ordered = (reads_in_order(part, b) for b in inputs)
    return _Shape(
        reads=reads,
        writes=results(part),
        unique=tuple(unique),
        ordered=tuple(ordered),
    )


Same = Mapping[Buffer, Buffer]


def fed(tasks: Sequence[TaskGroup], same: Same) -> list[TaskGroup]:
    """Insert a feeder before every tensor that several tasks read completely and in order.

    same: maps each tensor that aliases another one under a different shape to the written one.
    """
    writers, readers = _users(tasks)
    for b, made in same.items():
        if made in writers:
            writers[b] = writers[made]
    changed = {t: t for t in tasks}
    feeders: dict[TaskGroup, list[TaskGroup]] = {}
    for b, users in readers.items():
        if (
            b not in writers
            or sum(t.count for t in users) < 2
            or _flows_from(writers[b])
        ):
            continue
        if all(t.flows_into(b) for t in users):
            feeder = _feeder(b)
            feeders.setdefault(users[0], []).append(feeder)
            for t in users:
                changed[t] = _reading(changed[t], b, feeder.outputs[0])
    return [t for old in tasks for t in (*feeders.get(old, ()), changed[old])]


def _feeder(b: Buffer) -> TaskGroup:
    dims = tuple(Dim(Var(f"i{n}", INDEX), e) for n, e in enumerate(b.shape))
    index = tuple(d.var for d in dims)
    copy = Buffer(f"{b.name}_fed", b.shape, b.dtype)
    c = Computation("feeder", dims, (Output(copy, index, b[index]),))
    (task,) = tasks_of(b.name, b.name, ComputationTasks(c, "feeder"))
    return task


def _reading(task: TaskGroup, old: Buffer, new: Buffer) -> TaskGroup:
    """The task reading one tensor in place of another."""
    c = task.work
    assert isinstance(c, Computation)

    def moved(load: Load) -> Expr:
        return new[load.index]

    outputs = tuple(
        Output(o.tensor, o.index, map_loads(o.value, {old: moved})) for o in c.outputs
    )
    unique = {new if b is old else b: count for b, count in task.unique.items()}
    return replace(
        task,
        work=Computation(
            name=c.name,
            dims=c.dims,
            outputs=outputs,
            reducer=c.reducer,
        ),
        unique=unique,
    )


def _users(
    tasks: Sequence[TaskGroup],
) -> tuple[dict[Buffer, list[TaskGroup]], dict[Buffer, list[TaskGroup]]]:
    """The tasks that write and those that read each tensor."""
    writers: dict[Buffer, list[TaskGroup]] = {}
    readers: dict[Buffer, list[TaskGroup]] = {}
    for t in tasks:
        for b in t.outputs:
            writers.setdefault(b, []).append(t)
        for b in t.inputs:
            readers.setdefault(b, []).append(t)
    return writers, readers


def _flows_from(writers: Sequence[TaskGroup]) -> bool:
    return len(writers) == 1 and writers[0].flows_out


def connect(
    name: str,
    tasks: Sequence[TaskGroup],
    outputs: Mapping[str, Buffer],
    volume: Volume | str,
    same: Same,
) -> TaskGraph:
    """Build the graph of `tasks` with results `outputs`; other tensors are inputs or constants.

    same: as for `fed`.
    """
    b = TaskGraphBuilder(name)
    writers, read = _users(tasks)
    readers: dict[Buffer, list[_Reader]] = {}
    for tensor, users in read.items():
        found = readers.setdefault(same.get(tensor, tensor), [])
        found += [_Reader(t, tensor) for t in users]
    for tensor in readers:
        if tensor not in writers:
            b.source(tensor.name)
    for t in tasks:
        b.add(t.name, origin=t.origin, count=t.count)
    for tensor, found in readers.items():
        _edges(b, tensor, writers.get(tensor, ()), found)
    for label, shown in outputs.items():
        tensor = same.get(shown, shown)
        if tensor in writers:
            b.sink(f"out:{label}")
        for t in writers.get(tensor, ()):
            b.connect(
                t.name, f"out:{label}", t.writes, array=max(t.writes, tensor.size)
            )
    return b.build(volume)


@dataclass(frozen=True, slots=True)
class _Reader:
    """A task, and the tensor in the shape that it reads."""

    task: TaskGroup
    tensor: Buffer

    @property
    def unique(self) -> int:
        return self.task.unique[self.tensor]

    def streams(self, writers: Sequence[TaskGroup]) -> bool:
        """Whether the writers stream their results to it."""
        flows = _flows_from(writers) and self.task.flows_into(self.tensor)
        return self.task.joins or flows


def _edges(
    b: TaskGraphBuilder,
    tensor: Buffer,
    writers: Sequence[TaskGroup],
    readers: Sequence[_Reader],
) -> None:
    """Add the edges of one tensor, from its writers or from outside memory to its readers."""
    if not writers:
        for r in readers:
            b.connect(tensor.name, r.task.name, r.task.reads, unique=r.unique)
        return
    direct = [r for r in readers if r.streams(writers)]
    for r in direct:
        for w in writers:
            b.connect(w.name, r.task.name, w.writes, array=tensor.size)
    stored = [r for r in readers if r not in direct]
    for taken in _groups(stored, lambda r: r.task.reads):
        for given in _groups(writers, lambda t: t.writes):
            name = b.fresh(tensor.name)
            b.buffer(name, origin=tensor.name)
            for w in given:
                b.connect(w.name, name, w.writes, array=tensor.size)
            for r in taken:
                b.connect(name, r.task.name, r.task.reads, unique=r.unique)


def _groups(users: Collection[_T], volume: Callable[[_T], int]) -> list[list[_T]]:
    """Group the tasks by the volume that they move."""
    by_volume = sorted(users, key=volume)
    return [list(group) for _, group in groupby(by_volume, volume)]
