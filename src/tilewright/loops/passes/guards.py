"""Conditions around statements: pushed down to single ones, and put together again.

A barrier can be placed between two statements only where no condition that differs between threads
is around both. So the program of a thread has its guards at single statements first.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from tilewright.expr.nodes import And, Expr
from tilewright.loops.analysis.terms import loads, variables
from tilewright.loops.nodes import Alloc, Block, For, If, Stmt, block

Guards = tuple[Expr, ...]


def guarded(guards: Guards, s: Stmt) -> Stmt:
    """`if guards: s`."""
    if not guards or (isinstance(s, Block) and not s.stmts):
        return s
    return If(reduce(And, guards), s, None)


def gathered(s: Stmt) -> Stmt:
    """`s` with each guard around all consecutive statements that have it; guards read no memory."""
    inner: Stmt = s.map(
        lambda child: gathered(child) if isinstance(child, Stmt) else child
    )
    if isinstance(inner, Block):
        return block(*_joined(inner.stmts))
    if isinstance(inner, For | Alloc):
        return _lifted(inner)
    return inner


def _lifted(s: For | Alloc) -> Stmt:
    """A loop or an allocation inside the guards that all of its body has."""
    guards = []
    body = s.body
    while (
        isinstance(body, If)
        and body.otherwise is None
        and _is_outside(body.condition, s)
    ):
        guards.append(body.condition)
        body = body.then
    made: Stmt = s.replace(body=body) if guards else s
    for guard in reversed(guards):
        made = If(guard, made, None)
    return made


def _is_outside(condition: Expr, s: For | Alloc) -> bool:
    """Whether a condition is the same around a statement as in it."""
    if loads(condition):
        return False
    return not isinstance(s, For) or not (
        loads(s.extent) or s.var in variables(condition)
    )


def _joined(stmts: Sequence[Stmt]) -> list[Stmt]:
    """Statements in order, neighbors under one guard as one."""
    made: list[Stmt] = []
    for s in stmts:
        last = made[-1] if made else None
        if _same_guard(last, s):
            assert isinstance(last, If) and isinstance(s, If)
            made[-1] = If(s.condition, gathered(block(last.then, s.then)), None)
        else:
            made.append(s)
    return made


def _same_guard(one: Stmt | None, two: Stmt) -> bool:
    if not isinstance(one, If) or not isinstance(two, If):
        return False
    if one.otherwise is not None or two.otherwise is not None:
        return False
    return one.condition is two.condition and not loads(one.condition)
