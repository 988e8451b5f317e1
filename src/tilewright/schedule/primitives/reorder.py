"""reorder: other orders of perfectly nested loops."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from tilewright.expr.nodes import Expr
from tilewright.loops.analysis.dependence import can_reorder
from tilewright.loops.analysis.terms import loads
from tilewright.loops.analysis.verdict import Illegal, Unknown
from tilewright.loops.nodes import Block, For, If, Kernel, Stmt
from tilewright.loops.walk import StatementPlace
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import because, check_kinds, refuse
from tilewright.schedule.registry import primitive


def perfect_nest(
    kernel: Kernel, names: tuple[str, ...], primitive_: str
) -> tuple[list[For], Stmt, StatementPlace]:
    """The chain of loops from the outermost to the innermost of `names`, its body and its place.

    Guards between the loops that read no memory are moved into the body.
    """
    found = [tree.find_loop(kernel, n, primitive_) for n in names]
    top, place = min(found, key=lambda x: len(x[1].above))
    wanted = set(names)
    band: list[For] = []
    guards: list[Expr] = []
    s: Stmt = top
    while True:
        if isinstance(s, If) and s.otherwise is None and not loads(s.condition):
            guards.append(s.condition)
            s = s.then
            continue
        if not isinstance(s, For):
            break
        band.append(s)
        wanted.discard(s.var.name)
        s = s.body
        if not wanted:
            for condition in reversed(guards):
                s = If(condition, s, None)
            return band, s, place
    last = band[-1].var.name
    between = (
        type(s).__name__ if not isinstance(s, Block) else f"{len(s.stmts)} statements"
    )
    raise refuse(
        primitive_,
        last,
        f"it is not perfectly nested with {', '.join(sorted(wanted))}: its body is {between}",
        "decompose_reduction or fission the loops in between first",
    )


@primitive
def reorder(kernel: Kernel, *loops: str) -> tuple[Kernel, None]:
    """Put directly nested loops in the order given, outermost first.

    args: two or more loops of one perfect nest; loops between them that are not named stay at
        their depth. Guards between the loops move into the body.
    requires: no loop's extent depends on another of them, or on data; for any two accesses of one
        element, one of them a write, and any two loops that change sides, the two iterations agree
        in one of these loops; or both accesses are steps of the same commutative reduction.
    before: for i: for j: B(i, j)
    after:  for j: for i: B(i, j)
    """
    if len(set(loops)) != len(loops) or len(loops) < 2:
        raise refuse(
            "reorder",
            ", ".join(loops),
            "it takes two or more loops",
            "name each once",
        )
    band, body, place = perfect_nest(kernel, loops, "reorder")
    by_name = {f.var.name: f for f in band}
    queue = iter(loops)
    order = [by_name[next(queue)] if f.var.name in loops else f for f in band]
    moving = {f.var for f in band}
    for f in band:
        tree.check_steady(f, moving, "reorder")
    new_order = [f.var.name for f in order]
    verdict = can_reorder(kernel, band, new_order)
    if not verdict:
        x, y = _exchanged(verdict, [f.var.name for f in band], new_order)
        raise refuse(
            "reorder",
            f"{x}, {y}",
            f"exchanging {x} and {y} would reverse a loop-carried dependence: {because(verdict)}",
            "keep their order, or stage the buffer first (cache_write)",
        )
    new: Stmt = body
    for f in reversed(order):
        new = For(f.var, f.extent, f.kind, new)
    result = edit.put(kernel, place, new)
    check_kinds(
        result,
        (f.var.name for f in band),
        "reorder",
        "reorder before kinds are set",
    )
    return result, None


def _exchanged(
    verdict: Illegal | Unknown, band: Sequence[str], order: Sequence[str]
) -> tuple[str, str]:
    """Two loops that change sides, if possible such that the witness is in the wrong order then."""
    place = {name: n for n, name in enumerate(order)}
    swapped = [(x, y) for x, y in combinations(band, 2) if place[x] > place[y]]
    if isinstance(verdict, Illegal):
        first = verdict.witness.first
        second = verdict.witness.second
        distance = {name: first[name] - second[name] for name in band}
        for x, y in swapped:
            if distance[x] * distance[y] < 0:
                return x, y
    return swapped[0]
