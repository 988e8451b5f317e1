"""From a network to a task graph: each operator by one of its expansions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.dataflow.assemble import connect, fed
from tilewright.dataflow.expand import EXPANSIONS
from tilewright.dataflow.graph import Volume
from tilewright.dataflow.no_ops import without_copies
from tilewright.dataflow.operators import (
    choices_of,
    family_of,
    one_task,
    tasks_by,
    unique,
)
from tilewright.dataflow.program import Opaque, StreamProgram, TaskGroup
from tilewright.expr.nodes import Buffer
from tilewright.graph.nodes import Graph, Operation
from tilewright.graph.pipeline import graph_pipeline
from tilewright.loops.nodes import Kernel, block
from tilewright.plan.lower import lower
from tilewright.plan.nodes import (
    Branch,
    FusionGroup,
    HostFallback,
    Loop,
    Plan,
    Step,
)
from tilewright.plan.passes.fuse import fuse
from tilewright.plan.questions import NO_REWRITE_PAYS


@dataclass(frozen=True, eq=False)
class OperatorNetwork:
    """A network as groups, one or more per operator, before its expansions are chosen.

    same: maps each result of an operator that moves nothing, such as Reshape, to the tensor that it
    aliases; the operator is not a group.
    """

    name: str
    plan: Plan
    same: Mapping[Buffer, Buffer] = field(default_factory=dict)
    opaque: Mapping[Kernel, Opaque] = field(default_factory=dict)
    _tasks: dict[tuple[FusionGroup, str | None], list[TaskGroup]] = field(
        default_factory=dict, repr=False
    )

    @property
    def stages(self) -> Sequence[FusionGroup]:
        """The groups, in order."""
        return self.plan.groups

    @cached_property
    def choices(self) -> Mapping[str, Sequence[str]]:
        """The expansions of each group of Computations, by its name."""
        return {s.name: choices_of(s) for s in self.stages if s.computations}

    @cached_property
    def families(self) -> Mapping[str, str]:
        """The family of each group's main Computation, or `kernel`."""
        return {s.name: family_of(s) for s in self.stages}

    def tasks(self, stage: FusionGroup, choice: str | None) -> list[TaskGroup]:
        """The tasks of one group by an expansion, cached."""
        if (stage, choice) not in self._tasks:
            if stage.kernel is None:
                made = tasks_by(stage, choice, self._read_outside(stage))
            else:
                made = [
                    one_task(stage.name, self.opaque.get(stage.kernel, stage.kernel))
                ]
            self._tasks[stage, choice] = made
        return self._tasks[stage, choice]

    def _read_outside(self, stage: FusionGroup) -> set[Buffer]:
        """The tensors that other groups read, and the network's outputs."""
        read = set(self.plan.results).union(
            *(s.reads for s in self.stages if s is not stage)
        )
        return read | {self.same[b] for b in read & self.same.keys()}


def network(
    graph: Graph, *, fused: bool = False, opaque: bool = False
) -> OperatorNetwork:
    """The groups of a simplified graph with static shapes.

    fused: fuse neighboring maps into single tasks, and index maps into their readers.
    opaque: make operators without a native form one task each, if their sizes are known. Raises
    UnsupportedError, listing every operator without a native form, and InputError for unknown
    shapes and if nothing is computed.
    """
    simple = graph_pipeline("default", None, byte_products=False).run(graph)
    plan = lower(simple, channel_last=False)
    held: dict[Kernel, Opaque] = {}
    if opaque:
        plan, held = _opaque(plan)
    _check_native(plan)
    plan, same = without_copies(plan)
    if not plan.steps:
        raise InputError(
            "there is no operator to schedule: all outputs are inputs or constants",
            where=graph.name,
        )
    if fused:
        kept = frozenset((*plan.results, *same.values()))
        # A task takes a cycle per element read: repeating a map makes it read more.
        plan = plan.with_steps(fuse(plan.steps, kept, NO_REWRITE_PAYS.repeated))
    return OperatorNetwork(
        name=graph.name or "network",
        plan=plan,
        same=same,
        opaque=held,
    )


def _check_native(plan: Plan) -> None:
    """Raise UnsupportedError that lists control flow, or the host fallbacks."""
    control = [s.name for s in plan.steps if isinstance(s, Loop | Branch)]
    if control:
        raise UnsupportedError(
            f"no expansion of data-dependent control flow: {', '.join(control)}",
            where=plan.graph.name,
            hint="cut the model before it, or explore its parts alone",
        )
    missing = [s.operation for s in plan.host_fallbacks]
    if not missing:
        return
    names = ", ".join(f"{op.label} ({op.qualified})" for op in missing)
    count = f"{len(missing)} operators have" if len(missing) > 1 else "1 operator has"
    sized = all(_sized(plan, op) for op in missing)
    raise UnsupportedError(
        f"{count} no expansion: {names}",
        where=plan.graph.name,
        hint="keep them as opaque tasks with --opaque, or cut the model before them"
        if sized
        else "cut the model before them: some of their tensors have no size known before"
        " they run, or hold no numbers",
    )


def _sized(plan: Plan, op: Operation) -> bool:
    return all(v in plan.buffers for v in (*op.reads, *op.writes))


def _opaque(plan: Plan) -> tuple[Plan, dict[Kernel, Opaque]]:
    """Replace each host fallback whose tensors all have a size by a group.

    Its Kernel has no statements: it only stands for its reads and writes.
    """
    found: dict[Kernel, Opaque] = {}
    steps: list[Step] = []
    for n, step in enumerate(plan.steps):
        if not isinstance(step, HostFallback) or not _sized(plan, step.operation):
            steps.append(step)
            continue
        op = step.operation
        captured = (v for v in op.reads if v not in op.inputs)
        operands = tuple(
            None if v is None else plan.buffers[v] for v in (*op.inputs, *captured)
        )
        work = Opaque(op, operands, tuple(plan.buffers[v] for v in op.writes))
        name = f"{re.sub(r'[^A-Za-z0-9]+', '_', op.label).strip('_')}:opaque{n}"
        kernel = Kernel(name, (*work.inputs, *work.outputs), work.outputs, block())
        found[kernel] = work
        steps.append(
            FusionGroup(
                name=name,
                computations=(),
                sources=(op.label,),
                kernel=kernel,
            )
        )
    return plan.with_steps(steps), found


def program(
    net: OperatorNetwork,
    choices: Mapping[str, str] | None = None,
    volume: Volume | str = Volume.PART,
) -> StreamProgram:
    """Build the task graph of a network.

    choices: the expansion for a group's name, or for a family ("conv", "matmul", "map", ...);
    others get the first one of their family. Raises InputError for an unknown expansion.
    """
    chosen = dict(choices or {})
    _check(net, chosen)
    tasks: list[TaskGroup] = []
    for stage in net.stages:
        tasks += net.tasks(
            stage, chosen.get(stage.name, chosen.get(net.families[stage.name]))
        )
    tasks = unique(fed(tasks, net.same))
    inputs = [net.plan.buffers[v] for v in net.plan.graph.inputs]
    outputs = {v.name: net.plan.buffers[v] for v in net.plan.graph.outputs}
    graph = connect(net.name, tasks, outputs, volume, net.same)
    free = frozenset(b.name for b in inputs)
    return StreamProgram(graph, tasks, inputs, outputs, net.plan.data, free, net.same)


def _check(net: OperatorNetwork, chosen: Mapping[str, str]) -> None:
    known = {s.name for s in net.stages} | set(net.families.values())
    for name in chosen:
        if name not in known and name not in EXPANSIONS:
            raise InputError(
                f"an expansion is chosen for {name}, which is neither an operator nor a family",
                where=net.name,
                hint=f"operators: {', '.join(s.name for s in net.stages[:12])}",
            )
