"""Loops over a row: the Computations that share one, and the memory for intermediate rows.

A map and the reduction of its results run in one loop, if the primitives prove it legal. An
intermediate row is stored in the memory of the result that replaces it, if that is large: its cache
lines then arrive during computation, and the row needs none of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.nest import extents
from tilewright.schedule.space.patterns import arguments, free_dims, reduction_dims
from tilewright.schedule.tree import find_buffer
from tilewright.targets.cpu.cost import CostModel
from tilewright.targets.cpu.machine import CpuMachine


@dataclass(frozen=True, slots=True)
class RowLoop:
    """loops: outermost first. computations: what runs in them, in this order."""

    loops: tuple[str, ...]
    computations: tuple[Computation, ...]

    @property
    def reductions(self) -> list[Computation]:
        """Those that reduce along the row."""
        return [c for c in self.computations if not c.is_map]


def row_loops(
    s: Schedule,
    computations: Sequence[Computation],
    rows: int,
    machine: CpuMachine,
    choose: Choices,
) -> list[RowLoop]:
    """The loops over one row; rows: how many free dimensions of the last Computation, and of those
    that stay in memory, are around it.

    parameters: `<computation>.joins`, whether it runs in the loop before it.
    """
    found: list[RowLoop] = []
    wide: int | None = None  # the last that runs more than once
    for c in computations:
        held = all(o.tensor not in s.kernel.params for o in c.outputs)
        free = free_dims(c)[0 if held else rows :]
        dims = [*free, *reduction_dims(c)]
        new = RowLoop(tuple(f"{c.name}.{d.var.name}" for d in dims), (c,))
        joined = None if wide is None else _joined(s, found[wide], new, machine, choose)
        if wide is not None and joined is not None:
            found[wide] = joined
            continue
        found.append(new)
        if any(n > 1 for n in _extents(s, new)):
            wide = len(found) - 1
    return found


def _joined(
    s: Schedule, first: RowLoop, second: RowLoop, machine: CpuMachine, choose: Choices
) -> RowLoop | None:
    """Both in one loop, if that is legal, chosen, and both use vectors of one size."""
    both = RowLoop(first.loops, (*first.computations, *second.computations))
    sizes = _extents(s, first)
    lanes = {machine.lanes(c.outputs[0].tensor.dtype) for c in both.computations}
    if sizes != _extents(s, second):
        return None
    if len(lanes) > 1:
        return None
    if sizes[-1] < 2 * max(lanes):
        return None
    made = 0
    try:
        for one, other in zip(first.loops, second.loops, strict=True):
            s.merge(one, other)
            made += 1
        if choose(f"{second.computations[0].name}.joins", (True, False), True):
            return both
    except ScheduleError:
        pass
    for _ in range(made):
        s.undo()
    return None


def _extents(s: Schedule, p: RowLoop) -> list[int]:
    known = extents(s.kernel)
    return [known.get(name, 1) for name in p.loops]


def in_results(
    s: Schedule, computations: Sequence[Computation], costs: CostModel, choose: Choices
) -> set[Buffer]:
    """Put intermediate rows into the memory of the result computed at their last use; returns the
    buffers.

    parameters: `<buffer>.in_place`.
    """
    homes: dict[Buffer, str] = {}
    for c in reversed(computations[:-1]):
        row, *others = [o.tensor for o in c.outputs]
        readers = [r for r in computations if row in r.inputs]
        if others:
            continue
        if not c.is_map:
            continue
        if not readers:
            continue
        if row in s.kernel.params:
            continue
        result = readers[-1].outputs[0].tensor
        home = homes.get(result, result.name)
        try:
            s.store_with(row.name, home)
        except ScheduleError:
            continue
        buffer, _ = find_buffer(s.kernel, home, "store_with")
        size = buffer.size * buffer.dtype.itemsize
        far = size >= costs.in_place * costs.machine.l2 and not costs.streams(size)
        good = far and bool(arguments(c))
        if choose(f"{row.name}.in_place", (True, False), good):
            homes |= {row: home, result: home}
        else:
            s.undo()
    return set(homes)
