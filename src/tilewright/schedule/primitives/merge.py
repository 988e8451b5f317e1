"""merge: two consecutive loops as one that runs both bodies in each iteration."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import Lt, Var, const
from tilewright.loops.analysis.access import Env, environment
from tilewright.loops.analysis.dependence import can_fission
from tilewright.loops.analysis.effects import conflict
from tilewright.loops.nodes import Alloc, Block, For, If, Kernel, Stmt, block
from tilewright.loops.walk import StatementPlace, walk
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import because, check_steady, refuse
from tilewright.schedule.registry import primitive

_VERB = "merge"


@primitive
def merge(kernel: Kernel, loop: str, other: str) -> tuple[Kernel, None]:
    """Run two loops that follow one another as one: an iteration of each in turn.

    args: the loop, whose name stays; the loop that follows it.
    requires: `other` follows `loop` in one sequence (allocations in between go around both) and
        nothing in between shares memory with `loop` that one of them writes; both are serial, of
        one extent or of constant ones (the shorter one gets a guard); where A(i) and
        B(j), an iteration of each, conflict (access one element, one of them writing), i <= j; and
        the number of iterations does not depend on what the first loop writes. So it is legal where
        fission takes it back.
    before: for i in 8: T[i] = f(i)
            for j in 8: D[j] = g(T[j])
    after:  for i in 8: { T[i] = f(i); D[i] = g(T[i]) }
    """
    f, place = tree.find_loop(kernel, loop, _VERB)
    g, _ = tree.find_loop(kernel, other, _VERB)
    home = place.above[-1] if place.above else None
    if not isinstance(home, Block) or f is g:
        raise _not_next(loop, other)
    at = home.stmts.index(f)
    before = home.stmts[:at]
    following = home.stmts[at + 1 :]
    merged, first = _merged(f, g, environment(kernel.body))
    sequence = block(*before, *_instead(following, f, g, merged))
    result = edit.put(kernel, StatementPlace(home, place.above[:-1]), sequence)
    _check_order(result, loop, first)
    return result, None


def _merged(f: For, g: For, env: Env) -> tuple[For, int]:
    """The loop of both bodies, and how many of its statements are of the first."""
    for x in (f, g):
        if x.kind != "serial":
            raise refuse(
                _VERB,
                x.var.name,
                f"the loop is {x.kind} already",
                "merge loops before they are",
            )
    check_steady((g,), f.body, _VERB, f.var.name)
    extent = f.extent
    sizes = (0, 0)
    if f.extent is not g.extent:
        sizes = tree.trips(f, _VERB), tree.trips(g, _VERB)
        extent = const(max(sizes))
        env = {**env, f.var: (0, max(*sizes, 1) - 1)}
    first = f.body
    second = edit.rewrite(g.body, env, {g.var: f.var})
    if sizes[0] < sizes[1]:
        first = _below(f.var, sizes[0], first)
    elif sizes[1] < sizes[0]:
        second = _below(f.var, sizes[1], second)
    count = len(first.stmts) if isinstance(first, Block) else 1
    return For(f.var, extent, "serial", block(first, second)), count


def _below(var: Var, n: int, body: Stmt) -> Stmt:
    return If(Lt(var, const(n)), body, None)


def _instead(
    following: Sequence[Stmt],
    f: For,
    g: For,
    merged: For,
) -> list[Stmt]:
    """The statements after `f` with `merged` for `g`; `f` has to move past what precedes it."""
    found: list[Stmt] = []
    for n, s in enumerate(following):
        if s is g:
            return [*found, merged, *following[n + 1 :]]
        if isinstance(s, Alloc) and any(p.stmt is g for p in walk(s)):
            if isinstance(s.body, Block):
                inner = s.body.stmts
            else:
                inner = (s.body,)
            within = Alloc(s.buffer, block(*_instead(inner, f, g, merged)))
            return [*found, within, *following[n + 1 :]]
        shared = ", ".join(sorted(b.name for b in conflict(f, s)))
        if shared:
            raise refuse(
                _VERB,
                f.var.name,
                f"a statement between it and loop {g.var.name} uses {shared} too",
                "merge neighbors, or what is in between first",
            )
        found.append(s)
    raise _not_next(f.var.name, g.var.name)


def _check_order(merged: Kernel, name: str, first: int) -> None:
    """No iteration of the second body depends on a later one of the first."""
    f, _ = tree.find_loop(merged, name, _VERB)
    assert isinstance(f.body, Block)
    verdict = can_fission(merged, f, first)
    if not verdict:
        raise refuse(
            _VERB,
            name,
            f"the second loop depends on later iterations of the first: {because(verdict)}",
            "compute one at a loop of the other, which computes what it needs",
        )


def _not_next(name: str, other: str) -> ScheduleError:
    return refuse(
        _VERB,
        name,
        f"loop {other} does not follow it",
        "merge loops of one sequence, in its order",
    )
