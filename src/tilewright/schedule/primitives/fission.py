"""fission, decompose_reduction: one nest as two, the first part of its body run entirely first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import INDEX, Var
from tilewright.loops.dependence import can_fission
from tilewright.loops.nodes import Alloc, Block, For, If, Kernel, Stmt, Store, While, block
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import because, check_steady, evidence, refuse, show_pair
from tilewright.schedule.meeting import meeting
from tilewright.schedule.table import primitive


def crossing(
    first: Stmt, second: Stmt, loops: Sequence[For], env: tree.Env
) -> tuple[tree.Access, tree.Access, Var] | None:
    """An access of each part that may meet in different iterations of one of `loops`."""
    band = [f.var for f in loops]
    earlier = tree.accesses(first)
    for b in tree.accesses(second):
        for a in earlier:
            if a.buffer is not b.buffer or not (a.writes or b.writes):
                continue
            agree = meeting(a, b, band, env)
            free = None if agree is None else next((v for v in band if v not in agree), None)
            if free is not None:
                return a, b, free
    return None


def _apart(
    primitive_: str, found: tuple[tree.Access, tree.Access, Var], witness: str
) -> ScheduleError:
    a, b, v = found
    return refuse(
        primitive_,
        v.name,
        f"the parts meet in different iterations: {show_pair(a, b)}{witness}",
        "part the body elsewhere, or take a loop further in",
    )


@primitive
def fission(kernel: Kernel, name: str, after: int) -> tuple[Kernel, str]:
    """Split a loop whose body is a sequence in two; returns the second loop, `<loop>.2`.

    args: the loop; how many statements of its body stay in the first loop.
    requires: the body is a sequence of more than `after` statements, allocates nothing around them,
        where A(i) and B(j) meet in memory, one of them writing, i <= j; and the number of
        iterations does not depend on what A writes.
    before: for i: A(i); B(i)
    after:  for i: A(i)
            for i.2: B(i.2)
    """
    f, place = tree.find_loop(kernel, name, "fission")
    parts = f.body.stmts if isinstance(f.body, Block) else (f.body,)
    if not 0 < after < len(parts):
        raise refuse(
            "fission",
            name,
            f"its body is {len(parts)} statements, which cannot be parted after {after}",
            f"take 1 to {len(parts) - 1}" if len(parts) > 1 else "nothing is left to part",
        )
    first, second = block(*parts[:after]), block(*parts[after:])
    check_steady((f,), first, "fission", name)
    env = tree.environment(kernel.body)
    found = crossing(first, second, (f,), env)
    if found is not None:
        verdict = can_fission(kernel, name, after)
        if not verdict:
            raise _apart("fission", found, because(verdict))
    taken = tree.names(kernel)
    again = Var(tree.fresh(taken, f"{name}.2"), INDEX)
    other = For(again, f.extent, f.kind, edit.rewrite(second, env, {f.var: again}))
    new = block(For(f.var, f.extent, f.kind, first), other)
    return edit.put(kernel, place, new), again.name


@primitive
def decompose_reduction(kernel: Kernel, buffer: str, name: str) -> tuple[Kernel, tuple[str, ...]]:
    """Initialise a reduction in a nest of its own before `name`; returns that nest's loops.

    args: the accumulator; the outermost loop to hoist its initialisation out of.
    requires: inside the loop the first statements to run are Stores that initialise `buffer`,
        nested in loops (and guards) only, and where the rest of the body meets them in memory it
        is in the same iteration of all of these loops; none of the extents and guards around
        them reads what the loop writes.
    before: for i: for j: { C[i, j] = 0; for k: C[i, j] += A }
    after:  for i.init: for j.init: C[i.init, j.init] = 0
            for i: for j: for k: C[i, j] += A
    """
    f, place = tree.find_loop(kernel, name, "decompose_reduction")
    tree.find_buffer(kernel, buffer, "decompose_reduction")
    spine: list[For | If] = []
    s: Stmt = f
    while not isinstance(s, Block):
        if isinstance(s, For) or (isinstance(s, If) and s.otherwise is None):
            spine.append(s)
            s = s.body if isinstance(s, For) else s.then
            continue
        raise _no_start(name, buffer, s)
    starts = _leading(s, buffer)
    if not starts:
        raise _no_start(name, buffer, s)
    check_steady(spine, s, "decompose_reduction", name)
    first, rest = block(*starts), block(*s.stmts[len(starts) :])
    loops = [x for x in spine if isinstance(x, For)]
    env = tree.environment(kernel.body)
    found = crossing(first, rest, loops, env)
    if found is not None:
        raise _apart("decompose_reduction", found, evidence(kernel, found[2].name, found[0]))
    hoisted, remaining = first, rest
    for x in reversed(spine):
        hoisted = _around(x, hoisted)
        remaining = _around(x, remaining)
    copy, table = edit.renamed(hoisted, tree.names(kernel), ".init")
    new = edit.put(kernel, place, block(copy, remaining))
    return new, tuple(table[x.var.name] for x in loops)


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
    return starts[:count] if count < len(s.stmts) else []


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
        hint = "name the loop around the initialisation, before reordering"
    return refuse("decompose_reduction", name, reason, hint)
