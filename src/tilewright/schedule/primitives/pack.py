"""pack: what a nest reads of a buffer, in the order of its loops."""

from __future__ import annotations

from typing import Any

from tilewright.base.errors import ScheduleError
from tilewright.base.names import fresh
from tilewright.expr.nodes import Buffer, Load, Var, const
from tilewright.loops.analysis.access import Env, Index, environment
from tilewright.loops.analysis.terms import loads, variables
from tilewright.loops.nodes import Alloc, For, Kernel, Stmt, Store, block
from tilewright.loops.scopes import Scope
from tilewright.loops.walk import StatementPlace, names_of, walk
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import refuse
from tilewright.schedule.registry import primitive
from tilewright.schedule.staging import after_writes, guarded, sweep


@primitive
def pack(
    kernel: Kernel,
    buffer: str,
    *loops: str,
    scope: Scope = "global",
    name: str | None = None,
) -> tuple[Kernel, str]:
    """Store what a nest reads of `buffer` in the order in which it reads it; the new name.

    args: the buffer; the loops that index its read, in the order of the new dimensions; scope and
        name (default `<buffer>.pack`) of the new buffer.
    requires: inside these loops there is one read of the buffer whose index depends on exactly
        these loops (besides those that run once), all of constant extent and at least one
        iteration; the buffer has its final value before the outermost of them. Reads that depend
        on other loops stay.
    The copy is placed as far out as that value is final (the kernel's start for a parameter, from
    where it can be computed once and for all); its loops are `<new>.r<dimension>`.
    before: for o: for k: for i in 48: ... B[k, min(o*48, n-48) + i]
    after:  for r0: for r1: for r2 in 48: P[r0, r1, r2] = B[r1, min(r0*48, n-48) + r2]
            for o: for k: for i in 48: ... P[o, k, i]
    """
    old, alloc = tree.find_buffer(kernel, buffer, "pack")
    places = [tree.find_loop(kernel, n, "pack") for n in loops]
    if not places:
        raise refuse(
            "pack",
            buffer,
            "it needs the loops that index the read",
            "name them in order",
        )
    f = _inmost(places)
    vars_ = [g.var for g, _ in places]
    env = environment(kernel.body)
    shape = tuple(_iterations(g) for g, _ in places)
    load = _single(buffer, _reads(f.body, old), vars_, f.var.name, env)
    part = after_writes(kernel, old, alloc, "pack")
    top = min(places, key=lambda p: len(p[1].above))[0]
    if top not in {p.stmt for p in walk(part.body)}:
        raise refuse(
            "pack",
            top.var.name,
            f"{buffer} is not final before it",
            "pack an inner loop",
        )
    taken = names_of(kernel)
    new = Buffer(fresh(taken, name or f"{buffer}.pack"), shape, old.dtype, scope)

    def stage(point: Index) -> Stmt:
        read = _read_at(load, dict(zip(vars_, point, strict=True)), env)
        return guarded(read.index, old, env, Store(new, point, read))

    copy = sweep(f"{new.name}.r", shape, taken, env, stage)
    # A loop's single iteration is number 0, as in the copy.
    dims = zip(vars_, shape, strict=True)
    own = tuple(v if n != 1 else const(0) for v, n in dims)
    use = Load(new, own)
    inner = edit.rewrite(part.body, env, {load: use})
    return part.put(kernel, Alloc(new, block(copy, inner))), new.name


def _reads(body: Stmt, buffer: Buffer) -> set[Load]:
    """The different reads of a buffer in a body."""
    return {
        x
        for p in walk(body)
        for e in p.stmt.children()
        if not isinstance(e, Stmt)
        for x in loads(e)
        if x.buffer is buffer
    }


def _read_at(load: Load, point: dict[Var, Any], env: Env) -> Load:
    """The read at a point of the packed loops; those that run once are at iteration 0."""
    values: dict[Any, Any] = {}
    for i in load.index:
        values |= dict.fromkeys(variables(i), const(0))
    read: Load = edit.rewrite(load, env, values | point)
    return read


def _inmost(places: list[tuple[For, StatementPlace]]) -> For:
    """The innermost of the loops, which must be one chain."""
    f, inmost = max(places, key=lambda p: len(p[1].above))
    for g, _ in places:
        if g is not f and g not in inmost.above:
            raise refuse(
                "pack",
                g.var.name,
                f"it is not around loop {f.var.name}",
                "name loops of one nest",
            )
    return f


def _iterations(f: For) -> int:
    """The trip count of a loop, at least 1: a loop without iterations reads nothing.

    The same read may occur outside the loop, where the new buffer's index would be undefined.
    """
    count = tree.trips(f, "pack")
    if not count:
        raise refuse(
            "pack",
            f.var.name,
            "it has no iterations",
            "there is nothing to pack",
        )
    return count


def _single(
    buffer: str, found: set[Load], vars_: list[Var], inmost: str, env: Env
) -> Load:
    """The one read that depends on exactly these loops."""
    exact = [load for load in found if not any(_differences(load, vars_, env))]
    if len(exact) == 1:
        return exact[0]
    if len(found) != 1:
        raise refuse(
            "pack",
            inmost,
            f"it holds {len(found)} different reads of {buffer}, and {len(exact)} of them "
            "depend on exactly the named loops, not one",
            "cache_read stages several reads in the order of the buffer",
        )
    (load,) = found
    extra, missing = _differences(load, vars_, env)
    raise ScheduleError(
        f"pack: the read {load!r} depends on other loops: "
        f"unnamed {extra or 'none'}, unused {missing or 'none'}",
        where=f"buffer {buffer}",
        hint="name exactly the loops that its index depends on",
    )


def _differences(load: Load, vars_: list[Var], env: Env) -> tuple[list[str], list[str]]:
    """What a read depends on besides these loops, and those it does not depend on.

    Loops that run once make no difference.
    """
    used = {v for i in load.index for v in variables(i)}
    moving = {v for v in (*used, *vars_) if env.get(v) != (0, 0)}
    if used & moving == set(vars_) & moving:
        return [], []
    extra = sorted(repr(v) for v in used - set(vars_))
    missing = sorted(v.name for v in set(vars_) - used)
    return extra, missing
