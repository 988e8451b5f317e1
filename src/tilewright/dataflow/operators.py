"""The tasks of one operator under a named expansion."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from tilewright.base.names import fresh
from tilewright.compute.nodes import Computation
from tilewright.dataflow.assemble import tasks_of
from tilewright.dataflow.expand import PLAIN, expand, expansions, family
from tilewright.dataflow.parts import points, results
from tilewright.dataflow.program import Opaque, Task, Together
from tilewright.expr.nodes import Buffer
from tilewright.loops.nodes import Kernel, Store, Update
from tilewright.loops.walk import walk
from tilewright.plan.nodes import FusionGroup

OPERATOR: Final = "operator"  # the expansion of several Computations as one task


def choices_of(stage: FusionGroup) -> tuple[str, ...]:
    """The expansions of a group of Computations: those of its main one, the default first, and
    `operator` where it has several."""
    several = (OPERATOR,) if len(stage.computations) > 1 else ()
    return (*expansions(_main(stage)), *several)


def family_of(stage: FusionGroup) -> str:
    """What a group does: the family of its main Computation, or `kernel`."""
    return family(_main(stage)) if stage.computations else "kernel"


def tasks_by(
    stage: FusionGroup, choice: str | None, outside: Collection[Buffer]
) -> list[Task]:
    """The tasks of a group of Computations; `choice` is one of its own, or None for the default.

    outside: what others read of it, and the network's outputs.
    """
    if choice != OPERATOR:
        return _apart(stage, choice)
    return (
        _apart(stage, "whole")
        if len(stage.computations) == 1
        else [_together(stage, outside)]
    )


def _apart(stage: FusionGroup, choice: str | None) -> list[Task]:
    main = _main(stage)
    found: list[Task] = []
    for c in stage.computations:
        alike = choice in PLAIN or family(c) == family(main)
        follows = c is main or (alike and choice in expansions(c))
        for piece in expand(c, choice if follows else None):
            found += tasks_of(_name(stage, c), ",".join(stage.sources), piece)
    return unique(found)


def _together(stage: FusionGroup, outside: Collection[Buffer]) -> Task:
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
    differ = {b: min(reads, b.size) for b in work.inputs}
    return Task(stage.name, ",".join(stage.sources), work, reads, writes, differ)


def _main(stage: FusionGroup) -> Computation:
    """The Computation whose expansions a group has: the first with a reduction, else any. Those of
    the same family follow it where they can."""
    return next((c for c in stage.computations if not c.is_map), stage.computations[0])


def _name(stage: FusionGroup, c: Computation) -> str:
    return stage.name if len(stage.computations) == 1 else f"{stage.name}.{c.name}"


def one_task(name: str, work: Kernel | Opaque) -> Task:
    """An operator that is a loop program of its own, or not taken apart, as one task.

    What is known of its work are its tensors, and of a loop program the statements that it runs.
    """
    writes = max(b.size for b in work.outputs)
    steps = _statements(work) if isinstance(work, Kernel) else 0
    reads = max([writes, steps, *(b.size for b in work.inputs)])
    return Task(name, name, work, reads, writes, {b: b.size for b in work.inputs})


def _statements(kernel: Kernel) -> int:
    """How many it runs; loops of unknown extents once, and both sides of a condition."""
    leaves = (p for p in walk(kernel.body) if isinstance(p.stmt, Store | Update))
    return sum(math.prod(f.trips or 1 for f in p.loops) for p in leaves)


def unique(tasks: Sequence[Task]) -> list[Task]:
    """The tasks with names of which none is there twice."""
    taken: set[str] = set()
    return [replace(t, name=fresh(taken, t.name, ":")) for t in tasks]
