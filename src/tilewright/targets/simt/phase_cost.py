"""The cost of programs whose threads take turns (`phases.py`): it decides the threads of a block.

A step is an innermost statement. The first thread executes the steps outside phases; all threads
share those of a phase, and wait for one another after it. A `while` loop counts as one iteration,
which is wrong by the same factor for every number of threads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import dropwhile
from math import ceil
from typing import NamedTuple

from tilewright.loops.nodes import For, Stmt
from tilewright.loops.walk import below
from tilewright.targets.simt.machine import SimtMachine
from tilewright.targets.simt.row_cost import BARRIER_NS, LANES, STEP_NS, SWITCH_NS


class Phase(NamedTuple):
    """times: executions in a row. iterations: that threads share. steps: of an iteration."""

    times: int
    iterations: int
    steps: int


class PhaseWork(NamedTuple):
    """What a nest does. rows: that are independent. alone: steps of a row outside its phases."""

    rows: int
    alone: int
    phases: Sequence[Phase]


def work_of(
    nest: Stmt, rows: Collection[str], phases: Sequence[Sequence[str]]
) -> PhaseWork:
    """The work of a nest, by the names of the loops over its rows and in its phases."""
    first = {names[0]: names for names in phases}
    found: list[Phase] = []
    count = 1
    s = nest
    while isinstance(s, For) and s.var.name in rows:
        count *= s.trips or 1
        s = s.body
    alone = sum(_alone(s, 1, first, found))
    return PhaseWork(count, alone, tuple(found))


def _alone(
    s: Stmt, count: int, first: dict[str, Sequence[str]], found: list[Phase]
) -> Iterator[int]:
    """The steps outside phases, which are appended to `found`."""
    if isinstance(s, For) and s.var.name in first:
        names, iterations = first[s.var.name], 1
        while isinstance(s, For) and s.var.name in names:
            iterations *= s.trips or 1
            s = s.body
        found.append(Phase(count, iterations, sum(_alone(s, 1, {}, []))))
        return
    inner = below(s)
    if not inner:
        yield count
    if isinstance(s, For):
        count *= s.trips or 1
    for part in inner:
        yield from _alone(part, count, first, found)


def phase_ns(work: PhaseWork, m: SimtMachine, threads: int) -> float:
    """Nanoseconds of all rows with a block of `threads` threads each; with 1, of a thread each."""
    switch = 0.0 if m.shared_pays else SWITCH_NS * threads
    meet = (BARRIER_NS + switch) if threads > 1 else 0.0
    steps = work.alone * 1.0
    for p in work.phases:
        steps += p.times * ceil(p.iterations / threads) * p.steps
    if threads == 1:
        at_once = m.units * m.usual_threads
    else:
        at_once = m.units * max(1, min(m.unit_blocks, m.unit_threads // threads))
    return ceil(work.rows / at_once) * (steps * STEP_NS + meetings(work) * meet)


def meetings(work: PhaseWork) -> int:
    """How often the threads of a block meet: in front of each phase, but for the first ones, which
    are in no loop: what these write is there when threads meet in front of the next one."""
    rest = list(dropwhile(lambda p: p.times == 1, work.phases))
    if not rest:
        return max(len(work.phases) - 1, 0)
    return sum(p.times for p in rest)


def best_ns(work: PhaseWork, m: SimtMachine) -> float:
    """Nanoseconds with the number of threads that is expected to be fastest."""
    return phase_ns(work, m, block_threads(work, m)[0])


def block_threads(work: PhaseWork, m: SimtMachine) -> tuple[int, list[int]]:
    """The number of threads that is expected to be fastest, and all possible ones."""
    widest = max((p.iterations for p in work.phases), default=1)
    possible = [n for n in LANES if n <= m.block_threads and n < 2 * widest]
    return min(possible, key=lambda n: (phase_ns(work, m, n), n)), possible
