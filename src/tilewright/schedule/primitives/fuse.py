"""fuse: two directly nested loops as one."""

from __future__ import annotations

from typing import Any

from tilewright.base.names import fresh
from tilewright.expr.nodes import INDEX, FloorDiv, Mod, Var, const
from tilewright.loops.analysis.access import environment
from tilewright.loops.nodes import Kernel, loop
from tilewright.loops.walk import names_of
from tilewright.schedule import edit
from tilewright.schedule.legality import refuse
from tilewright.schedule.primitives.annotate import check_unmarked
from tilewright.schedule.primitives.reorder import perfect_nest
from tilewright.schedule.registry import primitive


@primitive
def fuse(kernel: Kernel, outer: str, inner: str) -> tuple[Kernel, str]:
    """Two directly nested loops as one of all their iterations; returns `<outer>_<inner>`.

    requires: `inner` is the whole body of `outer`, except for guards; the extent of `inner` is
        constant; both loops are serial, or both are parallel.
    before: for i in m: for j in n: B(i, j)
    after:  for f in m*n: B(f // n, f % n), or where m is 1: B(0, f), or n: B(f, 0)
    """
    band, body, place = perfect_nest(kernel, (outer, inner), "fuse")
    check_unmarked(kernel, (outer, inner), "fuse")
    if [f.var.name for f in band] != [outer, inner]:
        raise refuse(
            "fuse",
            outer,
            f"{inner} is not the loop directly inside it",
            "reorder first",
        )
    a, b = band
    if a.kind != b.kind or a.kind not in ("serial", "parallel"):
        kinds = f"the kinds are {a.kind} and {b.kind}"
        raise refuse("fuse", outer, kinds, "fuse before the kinds are set")
    n = b.trips
    if n is None:
        raise refuse(
            "fuse",
            inner,
            f"the extent {b.extent!r} is not a constant",
            "fuse loops of which only the outer one is open, or specialize",
        )
    total = a.extent * n if a.trips is None else const(a.trips * n)
    fused = Var(fresh(names_of(kernel), f"{outer}_{inner}"), INDEX)
    parts: dict[Any, Any] = {
        a.var: FloorDiv(fused, const(n)),
        b.var: Mod(fused, const(n)),
    }
    # Whatever is not simplified, such as a condition, is then one of a loop as well.
    if 1 in (a.trips, n):
        one, all_of = (b.var, a.var) if n == 1 else (a.var, b.var)
        parts = {one: const(0), all_of: fused}
    env = environment(loop(fused, total, kernel.body))
    new = loop(fused, total, edit.rewrite(body, env, parts), a.kind)
    return edit.put(kernel, place, new), fused.name
