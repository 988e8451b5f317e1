"""From a network to a task graph: each operator by one of its expansions."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from tilewright.base.errors import InputError, UnsupportedError
from tilewright.base.names import fresh
from tilewright.compute.nodes import Computation
from tilewright.dataflow.assemble import connect, fed, tasks_of
from tilewright.dataflow.expand import EXPANSIONS, PLAIN, expand, expansions, family
from tilewright.dataflow.graph import Volume
from tilewright.dataflow.parts import points, results
from tilewright.dataflow.program import Opaque, Program, Task, Together
from tilewright.expr.nodes import Buffer
from tilewright.graph.lower import Lowered, lower
from tilewright.graph.nodes import Graph, Operation
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.pipeline import graph_pipeline
from tilewright.graph.stages import HostCall, Stage
from tilewright.loops.nodes import Kernel, block

OPERATOR: Final = "operator"  # the expansion of several Computations as one task


@dataclass(frozen=True, eq=False)
class Network:
    """A network as Stages, one or more for each operator, before its expansions are chosen."""

    name: str
    lowered: Lowered
    opaque: Mapping[Kernel, Opaque] = field(default_factory=dict)
    _tasks: dict[tuple[Stage, str | None], list[Task]] = field(default_factory=dict, repr=False)

    @cached_property
    def stages(self) -> Sequence[Stage]:
        """The Stages, in order."""
        return [s for s in self.lowered.steps if isinstance(s, Stage)]

    @cached_property
    def choices(self) -> Mapping[str, Sequence[str]]:
        """The names of the Stages with the expansions of their main Computation, and `operator`
        where they have several."""
        return {
            s.name: (*expansions(_main(s)), *([OPERATOR] if len(s.computations) > 1 else []))
            for s in self.stages
            if s.computations
        }

    @cached_property
    def families(self) -> Mapping[str, str]:
        """What each Stage does: the family of its main Computation, or `kernel`."""
        return {s.name: family(_main(s)) if s.computations else "kernel" for s in self.stages}

    def tasks(self, stage: Stage, choice: str | None) -> list[Task]:
        """The tasks of one Stage by an expansion, made once."""
        if (stage, choice) not in self._tasks:
            whole = stage.kernel and self.opaque.get(stage.kernel, stage.kernel)
            if whole:
                made = [_whole_task(stage.name, whole)]
            elif choice == OPERATOR and len(stage.computations) > 1:
                made = [_one_task(stage, self._read_outside(stage))]
            else:
                made = _stage_tasks(stage, "whole" if choice == OPERATOR else choice)
            self._tasks[stage, choice] = made
        return self._tasks[stage, choice]

    def _read_outside(self, stage: Stage) -> set[Buffer]:
        """What other Stages read, and the network's outputs."""
        found = {self.lowered.buffers[v] for v in self.lowered.graph.outputs}
        return found.union(*(s.reads for s in self.stages if s is not stage))


def network(graph: Graph, *, fused: bool = False, opaque: bool = False) -> Network:
    """The Stages of a graph with static shapes, simplified.

    fused: with neighbouring maps as one, which then is a task less, and index maps inside their
    readers. opaque: operators without a native form are one task each, if their sizes are known.
    Raises UnsupportedError that lists every operator without a native form, and InputError for
    shapes that are not known and where nothing is computed.
    """
    simple = graph_pipeline("strict", None, byte_products=False).run(graph)
    lowered = lower(simple, channel_last=False)
    held = _opaque(lowered) if opaque else {}
    _check_native(lowered)
    if not lowered.steps:
        raise InputError(
            "there is no operator to schedule: all outputs are inputs or constants",
            where=graph.name,
        )
    if fused:
        outputs = frozenset(lowered.buffers[v] for v in lowered.graph.outputs)
        lowered = replace(lowered, steps=fuse(lowered.steps, outputs))
    return Network(graph.name or "network", lowered, held)


def _check_native(lowered: Lowered) -> None:
    """Raise UnsupportedError that lists the HostCalls."""
    missing = [s.operation for s in lowered.steps if isinstance(s, HostCall)]
    if not missing:
        return
    names = ", ".join(f"{op.label} ({op.qualified})" for op in missing)
    count = f"{len(missing)} operators have" if len(missing) > 1 else "1 operator has"
    sized = all(_sized(lowered, op) for op in missing)
    raise UnsupportedError(
        f"{count} no expansion: {names}",
        where=lowered.graph.name,
        hint="take them as they are with --opaque, or cut the model before them"
        if sized
        else "cut the model before them: some of their tensors have no size that is known before"
        " they run, or hold no numbers",
    )


def _sized(lowered: Lowered, op: Operation) -> bool:
    return all(v in lowered.buffers for v in (*op.reads, *op.writes))


def _opaque(lowered: Lowered) -> dict[Kernel, Opaque]:
    """Put a Stage in the place of each HostCall whose tensors all have a size.

    Its Kernel has no statements: it stands for what is read and written.
    """
    found: dict[Kernel, Opaque] = {}
    for n, step in enumerate(lowered.steps):
        if not isinstance(step, HostCall) or not _sized(lowered, step.operation):
            continue
        op = step.operation
        captured = (v for v in op.reads if v not in op.inputs)
        operands = tuple(None if v is None else lowered.buffers[v] for v in (*op.inputs, *captured))
        work = Opaque(op, operands, tuple(lowered.buffers[v] for v in op.writes))
        name = f"{re.sub(r'[^A-Za-z0-9]+', '_', op.label).strip('_')}:opaque{n}"
        kernel = Kernel(name, (*work.inputs, *work.outputs), work.outputs, block())
        found[kernel] = work
        lowered.steps[n] = Stage(name, (), (op.label,), kernel=kernel)
    return found


def program(
    net: Network, choices: Mapping[str, str] | None = None, volume: Volume | str = Volume.PART
) -> Program:
    """The task graph of a network.

    choices: for a Stage's name, or for a family ("conv", "matmul", "map", ...), the expansion; what
    is not named gets the first of its family. Raises InputError for one that does not exist.
    """
    chosen = dict(choices or {})
    _check(net, chosen)
    tasks: list[Task] = []
    for stage in net.stages:
        tasks += net.tasks(stage, chosen.get(stage.name, chosen.get(net.families[stage.name])))
    tasks = _unique(fed(tasks))
    inputs = [net.lowered.buffers[v] for v in net.lowered.graph.inputs]
    outputs = {v.name: net.lowered.buffers[v] for v in net.lowered.graph.outputs}
    graph = connect(net.name, tasks, outputs, volume)
    free = frozenset(b.name for b in inputs)
    return Program(graph, tasks, inputs, outputs, net.lowered.data, free)


def _stage_tasks(stage: Stage, choice: str | None) -> list[Task]:
    main = _main(stage)
    found: list[Task] = []
    for c in stage.computations:
        alike = choice in PLAIN or family(c) == family(main)
        follows = c is main or (alike and choice in expansions(c))
        for piece in expand(c, choice if follows else None):
            found += tasks_of(_name(stage, c), ",".join(stage.sources), piece)
    return _unique(found)


def _one_task(stage: Stage, outside: Collection[Buffer]) -> Task:
    """An operator of several Computations as one task; what only they read stays inside it.

    It applies one scalar function after the other, so that it reads as often as all of them do.
    """
    outputs = tuple(b for b in stage.writes if b in outside)
    work = Together(stage.computations, stage.reads, outputs)
    written = (
        sum(results(c) for c in stage.computations for o in c.outputs if o.tensor is b)
        for b in outputs
    )
    writes = max(written, default=1)
    reads = sum(points(c) for c in stage.computations)
    unique = {b: min(reads, b.size) for b in work.inputs}
    return Task(stage.name, ",".join(stage.sources), work, reads, writes, unique)


def _main(stage: Stage) -> Computation:
    """The Computation whose expansions a Stage has: the first with a reduction, else any. Those of
    the same family follow it where they can."""
    return next((c for c in stage.computations if not c.is_map), stage.computations[0])


def _name(stage: Stage, c: Computation) -> str:
    return stage.name if len(stage.computations) == 1 else f"{stage.name}.{c.name}"


def _check(net: Network, chosen: Mapping[str, str]) -> None:
    known = {s.name for s in net.stages} | set(net.families.values())
    for name in chosen:
        if name not in known and name not in EXPANSIONS:
            raise InputError(
                f"an expansion is chosen for {name}, which is no operator and no family",
                where=net.name,
                hint=f"operators: {', '.join(s.name for s in net.stages[:12])}",
            )


def _unique(tasks: Sequence[Task]) -> list[Task]:
    taken: set[str] = set()
    return [replace(t, name=fresh(taken, t.name, ":")) for t in tasks]


def _whole_task(name: str, work: Kernel | Opaque) -> Task:
    """An operator that is a loop program of its own, or not taken apart, as one task."""
    writes = max(b.size for b in work.outputs)
    reads = max([writes, *(b.size for b in work.inputs)])
    return Task(name, name, work, reads, writes, {b: b.size for b in work.inputs})
