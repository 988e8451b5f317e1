"""partition_loop: split a loop into ranges in which its guards are constant."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tilewright.loops.analysis.access import Env, environment
from tilewright.loops.nodes import GPU_AXES, Block, For, Kernel, Stmt, block, loop
from tilewright.loops.walk import names_of
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import check_kinds, refuse
from tilewright.schedule.primitives.annotate import check_unmarked
from tilewright.schedule.registry import primitive
from tilewright.schedule.simplify_guards import guards, simplify_guards, stretch


@primitive
def partition_loop(
    kernel: Kernel, loop: str, *points: int
) -> tuple[Kernel, tuple[str, ...]]:
    """Run a loop in parts, each without the guards that are decided there; the parts' loops.

    args: the loop; the iterations at which another part begins. Without any: the longest stretch
        on which the guards that depend on the loop are decided, what is before, and what is after.
    requires: a constant extent; 0 < points < extent, increasing; without points, that some guard
        changes along the loop (in bounds of the other variables in it); the loops around that are
        not serial may still run together (overlapping tiles store equal values by one Store).
    Order and meaning stay. The longest part keeps the names of its loops and buffers, in the
    others these carry the suffix `.p0`, `.p1`, ... for the first, second part. A part that does
    nothing is left out.
    before: for v in n: if v + i >= 1: B(v)
    after:  for v.p0 in 1: if v.p0 + i >= 1: B(v.p0)
            for v in n - 1: B(v + 1)
    """
    f, place = tree.find_loop(kernel, loop, "partition_loop")
    n = tree.trips(f, "partition_loop")
    check_unmarked(kernel, (loop,), "partition_loop")
    if f.kind in GPU_AXES:
        raise refuse(
            "partition_loop",
            loop,
            f"the loop is bound to {f.kind}",
            "partition it before bind",
        )
    env = environment(kernel.body)
    found = points or _steady(f, n, env)
    if list(found) != sorted({p for p in found if 0 < p < n}):
        given = ", ".join(map(str, found))
        raise refuse(
            "partition_loop",
            loop,
            f"the points {given} do not part its {n} iterations",
            f"take increasing ones in 1..{n - 1}",
        )
    made = parts(f, found, n, env, names_of(kernel))
    result = edit.put(kernel, place, block(*made))
    around = [g.var.name for g in place.loops if g.together]
    hint = "partition the loop before the one around it gets its kind"
    check_kinds(result, around, "partition_loop", hint)
    return result, tuple(part.var.name for part in made)


def _steady(f: For, n: int, env: Env) -> tuple[int, ...]:
    """The ends, inside 0..n, of the longest stretch without a change."""
    inner = {v: interval for v, interval in env.items() if v is not f.var}
    start, stop = stretch(guards(f.body), f.var, n, inner)
    if stop - start == n:
        raise refuse(
            "partition_loop",
            f.var.name,
            "no guard in it is decided in some iterations only",
            "name the points, or partition another loop",
        )
    return tuple(p for p in (start, stop) if 0 < p < n)


def parts(
    f: For, points: Sequence[int], n: int, env: Env, taken: set[str]
) -> list[For]:
    """The loop of n iterations as parts that begin at 0 and at the points, without parts that do
    nothing.

    env: bounds of its variables. taken: names of loops and buffers; the names in the copies are
    added.
    """
    edges = [0, *points, n]
    sizes = [stop - start for start, stop in pairwise(edges)]
    longest = sizes.index(max(sizes))
    made = []
    for k, (start, size) in enumerate(zip(edges, sizes)):
        part: Stmt = f
        if k != longest:
            part, _ = edit.renamed(f, taken, f".p{k}")
        assert isinstance(part, For)
        made.append(_part(part, start, size, env | environment(part)))
    return [part for part in made if part is not None]


def _part(f: For, start: int, size: int, env: Env) -> For | None:
    """Iterations `start .. start+size-1`; None where they do nothing."""
    env = {**env, f.var: (0, size - 1)}
    shifted: dict[Any, Any] = {f.var: f.var + start} if start else {}
    body = simplify_guards(edit.rewrite(f.body, env, shifted), env)
    if isinstance(body, Block) and not body.stmts:
        return None
    return loop(f.var, size, body, f.kind)
