"""reorder, fuse: other orders of perfectly nested loops."""

from __future__ import annotations

from typing import Any

from tilewright.expr.nodes import INDEX, Expr, FloorDiv, Mod, Var, const
from tilewright.loops.dependence import can_reorder
from tilewright.loops.nodes import Block, For, If, Kernel, Stmt, loop
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import because, check_kinds, refuse, show_pair
from tilewright.schedule.meeting import covered_in, order_witness
from tilewright.schedule.primitives.notes import check_unmarked
from tilewright.schedule.table import primitive


def _band(
    kernel: Kernel, names: tuple[str, ...], primitive_: str
) -> tuple[list[For], Stmt, tree.Place]:
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
        if isinstance(s, If) and s.otherwise is None and not tree.loads(s.condition):
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
    between = type(s).__name__ if not isinstance(s, Block) else f"{len(s.stmts)} statements"
    raise refuse(
        primitive_,
        last,
        f"it is not perfectly nested with {', '.join(sorted(wanted))}: its body is {between}",
        "decompose_reduction or fission the loops in between first",
    )


@primitive
def reorder(kernel: Kernel, *names: str) -> tuple[Kernel, None]:
    """Put directly nested loops in the order given, outermost first.

    args: two or more loops of one perfect nest; loops between them that are not named stay at
        their depth. Guards between the loops move into the body.
    requires: for any two accesses of one buffer that can meet, one of them a write, and any two
        loops that change sides, the two iterations agree in one of these loops; or both accesses
        are steps of the same commutative reduction.
    before: for i: for j: B(i, j)
    after:  for j: for i: B(i, j)
    """
    if len(set(names)) != len(names) or len(names) < 2:
        raise refuse("reorder", ", ".join(names), "it takes two or more loops", "name each once")
    band, body, place = _band(kernel, names, "reorder")
    by_name = {f.var.name: f for f in band}
    queue = iter(names)
    order = [by_name[next(queue)] if f.var.name in names else f for f in band]
    for f in band:
        tree.trips(f, "reorder")
    env = tree.environment(kernel.body)
    witness = order_witness(body, [f.var for f in band], [f.var for f in order], env)
    verdict = None
    if witness is not None:
        verdict = can_reorder(kernel, [f.var.name for f in band], covered_in(body, env))
    if witness is not None and not verdict:
        a, b, x, y = witness
        raise refuse(
            "reorder",
            f"{x!r}, {y!r}",
            f"exchanging {x!r} and {y!r} would change the order in which iterations meet: one "
            f"{show_pair(a, b)}{because(verdict)}",
            "keep their order, or stage the buffer first (cache_write)",
        )
    new: Stmt = body
    for f in reversed(order):
        new = For(f.var, f.extent, f.kind, new)
    result = edit.put(kernel, place, new)
    check_kinds(result, (f.var.name for f in band), "reorder", "reorder before kinds are set")
    return result, None


@primitive
def fuse(kernel: Kernel, outer: str, inner: str) -> tuple[Kernel, str]:
    """Two directly nested loops as one of all their iterations; returns `<outer>_<inner>`.

    requires: `inner` is the whole body of `outer`, guards apart; both extents are constant and both
        loops are serial, or both are parallel.
    before: for i in m: for j in n: B(i, j)
    after:  for f in m*n: B(f // n, f % n)
    """
    band, body, place = _band(kernel, (outer, inner), "fuse")
    check_unmarked(kernel, (outer, inner), "fuse")
    if [f.var.name for f in band] != [outer, inner]:
        raise refuse("fuse", outer, f"{inner} is not the loop directly inside it", "reorder first")
    a, b = band
    if a.kind != b.kind or a.kind not in ("serial", "parallel"):
        kinds = f"the kinds are {a.kind} and {b.kind}"
        raise refuse("fuse", outer, kinds, "fuse before the kinds are set")
    m, n = tree.trips(a, "fuse"), tree.trips(b, "fuse")
    fused = Var(tree.fresh(tree.names(kernel), f"{outer}_{inner}"), INDEX)
    env = tree.environment(kernel.body)
    env[fused] = (0, max(m * n - 1, 0))
    parts: dict[Any, Any] = {a.var: FloorDiv(fused, const(n)), b.var: Mod(fused, const(n))}
    new = loop(fused, m * n, edit.rewrite(body, env, parts), a.kind)
    return edit.put(kernel, place, new), fused.name
