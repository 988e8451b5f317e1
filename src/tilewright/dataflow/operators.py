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
from tilewright.dataflow.program import FusedTask, Opaque, TaskGroup
from tilewright.expr.nodes import Buffer
from tilewright.loops.nodes import Kernel, Store, Update
from tilewright.loops.walk import walk
from tilewright.plan.nodes import FusionGroup

OPERATOR: Final = "operator"  # the expansion of several Computations as one task


def choices_of(group: FusionGroup) -> tuple[str, ...]:
    """The expansions of a group of Computations: those of its main one, the default first, and
    `operator` if it has several Computations."""
    names = tuple(expansions(_main(group)))
    if len(group.computations) == 1:
        return names
    return (*names, OPERATOR)


def family_of(group: FusionGroup) -> str:
    """The family of a group's main Computation, or `kernel`."""
    if not group.computations:
        return "kernel"
    return family(_main(group))


def tasks_by(
    group: FusionGroup, choice: str | None, outside: Collection[Buffer]
) -> list[TaskGroup]:
    """The tasks of a group of Computations; `choice`: an expansion, or None for the default.

    outside: the tensors that other groups read, and the network's outputs.
    """
    if choice != OPERATOR:
        return _separate(group, choice)
    if len(group.computations) == 1:
        return _separate(group, "whole")
    return [_together(group, outside)]


def _separate(group: FusionGroup, choice: str | None) -> list[TaskGroup]:
    main = _main(group)
    origin = ",".join(group.sources)
    found: list[TaskGroup] = []
    for c in group.computations:
        alike = choice in PLAIN or family(c) == family(main)
        follows = c is main or (alike and choice in expansions(c))
        pieces = expand(c, choice if follows else None)
        for piece in pieces:
            found += tasks_of(_name(group, c), origin, piece)
    return unique(found)


def _together(group: FusionGroup, outside: Collection[Buffer]) -> TaskGroup:
    """An operator of several Computations as one task; intermediate tensors stay inside it.

    It applies one scalar function after the other, so it reads as often as all of them together.
    """
    outputs = tuple(b for b in group.writes if b in outside)
    work = FusedTask(group.computations, group.reads, outputs)
    written = dict.fromkeys(outputs, 0)
    for c in group.computations:
        for o in c.outputs:
            if o.tensor in written:
                written[o.tensor] += results(c)
    writes = max(written.values(), default=1)
    reads = sum(points(c) for c in group.computations)
    differ = {b: min(reads, b.size) for b in work.inputs}
    origin = ",".join(group.sources)
    return TaskGroup(group.name, origin, work, reads, writes, differ)


def _main(group: FusionGroup) -> Computation:
    """The Computation whose expansions a group has: the first with a reduction, else the first.
    Others of the same family follow it if they can."""
    reductions = (c for c in group.computations if not c.is_map)
    return next(reductions, group.computations[0])


def _name(group: FusionGroup, c: Computation) -> str:
    several = len(group.computations) > 1
    return f"{group.name}.{c.name}" if several else group.name


def one_task(name: str, work: Kernel | Opaque) -> TaskGroup:
    """An operator that is a loop program, or opaque, as one task.

    Its work is estimated from its tensors, and for a loop program from the statements that it runs.
    """
    unique = {b: b.size for b in work.inputs}
    writes = max(b.size for b in work.outputs)
    reads = max([writes, *unique.values()])
    if isinstance(work, Kernel):
        reads = max(reads, _statements(work))
    return TaskGroup(name, name, work, reads, writes, unique)


def _statements(kernel: Kernel) -> int:
    """The statements run: loops of unknown extent once, and both sides of a condition."""
    count = 0
    for place in walk(kernel.body):
        if isinstance(place.stmt, Store | Update):
            trips = [loop.trips or 1 for loop in place.loops]
            count += math.prod(trips)
    return count


def unique(tasks: Sequence[TaskGroup]) -> list[TaskGroup]:
    """Rename tasks to make names unique."""
    taken: set[str] = set()
    return [replace(t, name=fresh(taken, t.name, ":")) for t in tasks]
