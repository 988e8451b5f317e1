"""Units executed by a whole warp, or by several in a row: tensor core instructions.

In a kernel, such a unit is outside of loops over the axes whose threads execute it: `threadIdx.x`,
or x and further ones together. Its buffers in scope "warp" are tiles distributed over the
threads' registers. Where the intrinsic says which elements each thread has (`fragment`), phases may
access these, and no others. Until the barriers are placed, a thread's program treats them as if
each thread had the whole tile and executed the whole unit, and as if only the first thread accessed
memory:

    store(y[0, 0], acc[0, 0])     ->     if threadIdx.x < 1: store(y[0, 0], acc[0, 0])

This describes the accesses, from which the barriers are derived. Then the guard is removed: the
whole warp must reach the instruction. All threads or none reach it, since conditions around a unit
are uniform across the warp.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial, reduce
from math import prod
from typing import Any, Final

from tilewright.expr.affine import affine
from tilewright.expr.nodes import And, Buffer, Expr, Lt, const
from tilewright.ir.node import transform
from tilewright.loops.analysis.access import Access, Env, accesses, environment
from tilewright.loops.intrinsic import Fragment
from tilewright.loops.launch import AXIS
from tilewright.loops.match import match
from tilewright.loops.nodes import If, Stmt, Unit
from tilewright.loops.operands import OperandMismatch
from tilewright.loops.passes.thread_registers import own_index, refusal
from tilewright.loops.walk import walk

LANES: Final = "threadIdx.x"


def lanes(
    body: Stmt,
    threads: Mapping[str, int],
) -> tuple[str, ...]:
    """The axes of a block whose threads do a unit together: those of its units' fragments if the
    block has as many threads there, and x otherwise."""
    fragments_ = [_fragment(unit) for unit in warp_units(body)]
    shares = {s for held in fragments_ for along in held for s in along}
    if not shares or any(threads[s.axis] != s.threads for s in shares):
        return (LANES,)
    axes = {s.axis for s in shares}
    for at in walk(body):
        if _is_together(at.stmt) and any(f.kind in axes for f in at.loops):
            return (LANES,)  # another warp for each iteration
    return tuple(sorted(axes))


def _fragment(unit: Unit) -> Fragment:
    assert unit.intrinsic is not None
    return unit.intrinsic.intrinsic.fragment


def warp_units(s: Stmt) -> Iterator[Unit]:
    """The units in a statement that threads do together."""
    for at in walk(s):
        if isinstance(at.stmt, Unit) and _is_together(at.stmt):
            yield at.stmt


def check_units(
    body: Stmt,
    threads: Mapping[str, int],
    warp: int,
    together: Sequence[str],
) -> None:
    """Raise ScheduleError (TW-LAUNCH) for a unit of a warp in a block that has no such warps.

    threads: of the block, by axis. warp: how many threads of the machine run in step. together:
    the axes that these are on.
    """
    count = prod(threads[axis] for axis in together)
    for at in walk(body):
        unit = at.stmt
        if not isinstance(unit, Unit) or not _is_together(unit):
            continue
        where = f"unit {unit.name}"
        for f in at.loops:
            if f.kind in together:
                what = f"a warp does it, but it is in loop {f.var.name} over {f.kind}"
                raise refusal(what, where, "bind the loop to another axis")
        if warp == 1 or unit.threads % warp:
            what = f"{unit.threads} threads do it together, and a warp has {warp}"
            raise refusal(what, where, "schedule it for a machine that has it")
        if count != unit.threads:
            n = unit.threads
            what = f"{n} threads do it, and the block has {count} threads on {LANES}"
            hint = f"bind loops of {n} iterations to {LANES}, and others to threadIdx.y"
            raise refusal(what, where, hint)


def check_fragments(
    body: Stmt,
    axes: Sequence[str],
    env: Env,
) -> None:
    """Raise ScheduleError (TW-LAUNCH) where a thread accesses what another thread of its warp has.

    body: with the numbers of the thread as AXIS has them. axes: whose threads are a warp. env:
    bounds of all variables.
    """
    numbers = {AXIS[axis] for axis in axes}
    held = fragments(body)
    for a in accesses(body, env):
        if a.buffer.scope != "warp" or any(map(_is_together, a.place.above)):
            continue
        shares = held.get(a.buffer, ())
        fits = {s.axis for along in shares for s in along} == set(axes)
        if not fits or not _is_own(a, shares, numbers, env):
            what = f"single threads have {a}, and a warp holds it together"
            hint = "tensorize what fills it, what adds to it and what stores it"
            raise refusal(what, f"buffer {a.buffer.name}", hint)


def _is_own(
    a: Access,
    held: Fragment,
    numbers: Collection[Expr],
    env: Env,
) -> bool:
    """Whether a thread accesses its own elements of a fragment."""
    around = len(a.index) - len(held)
    own = (
        own_index(affine(i), shares, numbers, env)
        for i, shares in zip(a.index, [*[()] * around, *held], strict=True)
    )
    return all(i is not None for i in own)


def fragments(body: Stmt) -> dict[Buffer, Fragment]:
    """Which elements of its buffers a thread of a warp has; nothing where its units differ."""
    found: dict[Buffer, set[Fragment]] = {}
    for unit in warp_units(body):
        for o in unit.operands:
            if o.buffer.scope == "warp":
                found.setdefault(o.buffer, set()).add(_fragment(unit))
    return {b: next(iter(all_)) if len(all_) == 1 else () for b, all_ in found.items()}


def _is_together(s: Stmt) -> bool:
    return isinstance(s, Unit) and s.threads > 1


def written_fragments(body: Stmt) -> tuple[Buffer, ...]:
    """The buffers of warps that single threads write, each its own elements."""
    env = environment(body)
    own = (a for a in accesses(body, env) if not any(map(_is_together, a.place.above)))
    found = (a.buffer for a in own if a.writes and a.buffer.scope == "warp")
    return tuple(dict.fromkeys(found))


def with_units(
    body: Stmt,
    threads: Mapping[str, int],
) -> Stmt:
    """A thread's program in which all threads of a warp reach its units.

    Operands are matched anew. Raises ScheduleError (TW-LAUNCH) if one no longer fits the intrinsic.
    """
    first = [Lt(AXIS[axis], const(1)) for axis in lanes(body, threads)]
    made: Stmt = transform(body, partial(_rewritten, first))
    return made


def _rewritten(
    first: Collection[Expr],
    node: Any,
) -> Any:
    if isinstance(node, Unit) and _is_together(node):
        return _placed(node)
    if isinstance(node, If) and _is_together(node.then):
        rest = [part for part in _parts(node.condition) if part not in first]
        return If(reduce(And, rest), node.then, None) if rest else node.then
    return node


def _parts(e: Expr) -> list[Expr]:
    return [*_parts(e.lhs), *_parts(e.rhs)] if isinstance(e, And) else [e]


def _placed(s: Unit) -> Unit:
    assert s.intrinsic is not None
    try:
        use, operands = match(s.intrinsic.intrinsic, s.body)
    except OperandMismatch as error:
        raise refusal(str(error), f"unit {s.name}", "stage its operands") from error
    assert use == s.intrinsic
    made: Unit = s.replace(operands=operands)
    return made
