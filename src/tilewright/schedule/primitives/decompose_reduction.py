"""decompose_reduction: the initialization of a reduction in its own nest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.base.errors import ScheduleError
from tilewright.loops.analysis.dependence import can_separate
from tilewright.loops.analysis.verdict import Illegal, Verdict
from tilewright.loops.nodes import (
    Alloc,
    Block,
    For,
    If,
    Kernel,
    Stmt,
    Store,
    While,
    block,
)
from tilewright.loops.walk import names_of
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import check_steady, refuse
from tilewright.schedule.primitives.fission import check_separable
from tilewright.schedule.registry import primitive


@primitive
def decompose_reduction(
    kernel: Kernel, buffer: str, loop: str
) -> tuple[Kernel, tuple[str, ...]]:
    """Initialize a reduction in its own nest before `loop`; returns that nest's loops.

    args: the accumulator; the outermost loop to hoist its initialization out of.
    requires: inside the loop the first statements to run are Stores that initialize `buffer`,
        nested in loops (and guards) only, and where the rest of the body conflicts with them, it
        does so in the same iteration of all of these loops; none of the extents and guards around
        them reads what the loop writes.
    before: for i: for j: { C[i, j] = 0; for k: C[i, j] += A }
    after:  for i.init: for j.init: C[i.init, j.init] = 0
            for i: for j: for k: C[i, j] += A
    """
    f, place = tree.find_loop(kernel, loop, "decompose_reduction")
    tree.find_buffer(kernel, buffer, "decompose_reduction")
    spine: list[For | If] = []
    s: Stmt = f
    while not isinstance(s, Block):
        if isinstance(s, For):
            spine.append(s)
            s = s.body
        elif isinstance(s, If) and s.otherwise is None:
            spine.append(s)
            s = s.then
        else:
            raise _no_start(loop, buffer, s)
    starts = _leading(s, buffer)
    if not starts:
        raise _no_start(loop, buffer, s)
    check_steady(spine, s, "decompose_reduction", loop)
    following = s.stmts[len(starts) :]
    first = block(*starts)
    rest = block(*following)
    loops = [x for x in spine if isinstance(x, For)]
    verdict = can_separate(kernel, loops, starts, following)
    check_separable(verdict, "decompose_reduction", _separated(verdict, loops))
    hoisted, remaining = first, rest
    for x in reversed(spine):
        hoisted = _around(x, hoisted)
        remaining = _around(x, remaining)
    copy, table = edit.renamed(hoisted, names_of(kernel), ".init")
    new = edit.put(kernel, place, block(copy, remaining))
    return new, tuple(table[x.var.name] for x in loops)


def _separated(verdict: Verdict, loops: Sequence[For]) -> str:
    """The loop that carries the conflict between the parts; the outermost one if that is
    unknown."""
    names = [f.var.name for f in loops]
    if isinstance(verdict, Illegal):
        first = verdict.witness.first
        second = verdict.witness.second
        return next(n for n in names if first[n] != second[n])
    return names[0]


def _leading(s: Block, buffer: str) -> list[Stmt]:
    """The Stores at the start of a block, up to the last one that writes `buffer`."""
    starts: list[Stmt] = []
    count = 0
    for n, x in enumerate(s.stmts):
        if not isinstance(x, Store):
            break
        starts.append(x)
        if x.buffer.name == buffer:
            count = n + 1
    if count < len(s.stmts):
        return starts[:count]
    return []


def _around(spine: For | If, body: Stmt) -> Stmt:
    if isinstance(spine, For):
        return For(spine.var, spine.extent, spine.kind, body)
    return If(spine.condition, body, None)


def _no_start(name: str, buffer: str, s: Any) -> ScheduleError:
    if isinstance(s, Alloc):
        reason = f"{s.buffer.name} is allocated inside the loop, around the reduction"
        hint = f"expand({s.buffer.name!r}, ...) first, so that it outlives the loop"
    elif isinstance(s, While):
        reason, hint = "a while loop is in between", "nothing can be hoisted out of it"
    else:
        reason = f"its innermost body does not start with a Store to {buffer}"
        hint = "name the loop around the initialization, before reordering"
    return refuse("decompose_reduction", name, reason, hint)
