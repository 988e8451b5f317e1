"""Units executed by a whole warp: tensor core instructions.

In a kernel, such a unit is outside of loops over `threadIdx.x`, whose threads are the warp. Its
buffers in scope "warp" are tiles distributed over the threads' registers. Until the barriers are
placed, a thread's program treats them as if each thread had the whole tile and executed the whole
unit, and as if only the first thread accessed memory:

    store(y[0, 0], acc[0, 0])     ->     if threadIdx.x < 1: store(y[0, 0], acc[0, 0])

This describes the accesses, from which the barriers are derived. Then the guard is removed: the
whole warp must reach the instruction. All threads or none reach it, since conditions around a unit
are uniform across the warp.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any, Final

from tilewright.expr.nodes import And, Expr, Lt, const
from tilewright.ir.node import transform
from tilewright.loops.analysis.access import accesses, environment
from tilewright.loops.launch import AXIS
from tilewright.loops.match import match
from tilewright.loops.nodes import If, Stmt, Unit
from tilewright.loops.operands import OperandMismatch
from tilewright.loops.passes.thread_registers import refusal
from tilewright.loops.walk import walk

LANES: Final = "threadIdx.x"
_FIRST: Final = Lt(AXIS[LANES], const(1))


def warp_units(s: Stmt) -> Iterator[Unit]:
    """The units in a statement that threads do together."""
    for at in walk(s):
        if isinstance(at.stmt, Unit) and _is_together(at.stmt):
            yield at.stmt


def check_units(body: Stmt, threads: Mapping[str, int], warp: int) -> None:
    """Raise ScheduleError (TW-LAUNCH) for a unit of a warp in a block that has no such warps.

    threads: of the block, by axis. warp: how many threads of the machine run in step.
    """
    for at in walk(body):
        unit = at.stmt
        if not isinstance(unit, Unit) or not _is_together(unit):
            continue
        where = f"unit {unit.name}"
        for f in at.loops:
            if f.kind == LANES:
                what = f"a warp does it, but it is in loop {f.var.name} over {LANES}"
                raise refusal(what, where, "bind the loop to threadIdx.y")
        if unit.threads != warp:
            what = f"{unit.threads} threads do it together, and a warp has {warp}"
            raise refusal(what, where, "schedule it for a machine that has it")
        if threads[LANES] != warp:
            what = (
                f"a warp does it, and the block has {threads[LANES]} threads on {LANES}"
            )
            hint = (
                f"bind loops of {warp} iterations to {LANES}, and warps to threadIdx.y"
            )
            raise refusal(what, where, hint)
    for a in accesses(body, environment(body)):
        if a.buffer.scope == "warp" and not any(map(_is_together, a.place.above)):
            what = f"single threads have {a}, and a warp holds it together"
            hint = "tensorize what fills it, what adds to it and what stores it"
            raise refusal(what, f"buffer {a.buffer.name}", hint)


def _is_together(s: Stmt) -> bool:
    return isinstance(s, Unit) and s.threads > 1


def with_units(body: Stmt) -> Stmt:
    """A thread's program in which all threads of a warp reach its units.

    Operands are matched anew. Raises ScheduleError (TW-LAUNCH) if one no longer fits the intrinsic.
    """
    made: Stmt = transform(body, _rewritten)
    return made


def _rewritten(node: Any) -> Any:
    if isinstance(node, Unit) and _is_together(node):
        return _placed(node)
    if isinstance(node, If) and _is_together(node.then):
        rest = [part for part in _parts(node.condition) if part is not _FIRST]
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
