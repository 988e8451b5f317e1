"""Tests the promise of a loop's kind: runs its iterations in another order, or interleaved.

The interpreter runs every loop in order, whatever its kind, so an incorrectly parallel loop still
computes the right result. Here are two more orders in which threads or lanes may run: the last
iteration first, and each statement for all iterations before the next statement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.expr.nodes import Buffer, Expr, Var
from tilewright.ir.node import substitute
from tilewright.loops.analysis.terms import loads, variables
from tilewright.loops.nodes import (
    IN_ORDER,
    Alloc,
    Block,
    For,
    If,
    Kernel,
    Stmt,
    Unit,
    block,
    loop,
)
from tilewright.schedule import edit


def backwards(kernel: Kernel) -> Kernel:
    """`kernel` with the last iteration first in each loop whose kind allows another order."""
    body = _serial(kernel.body, _each)
    return kernel.with_body(body)


def interleaved(kernel: Kernel) -> Kernel:
    """`kernel` statement by statement in loops that keep no order, the last iteration first."""
    body = _serial(kernel.body, _together)
    return kernel.with_body(body)


def _serial(s: Stmt, order: Callable[[Stmt, _Lanes], Stmt]) -> Stmt:
    new: Stmt = s.map(lambda x: _serial(x, order) if isinstance(x, Stmt) else x)
    if isinstance(new, For):
        n = new.trips
    else:
        n = None
    if not isinstance(new, For):
        return new
    if new.kind in IN_ORDER:
        return new
    if n is None:
        return new
    return order(new.body, _Lanes(new.var, n))


@dataclass(frozen=True, slots=True)
class _Lanes:
    """The iterations of a loop over `var`; only those that satisfy `guard` run."""

    var: Var
    n: int
    guard: Expr | None = None


def _together(s: Stmt, lanes: _Lanes) -> Stmt:
    rule = _RULES.get(type(s))
    if rule is None:
        inner = None
    else:
        inner = rule(s, lanes)
    if inner is None:
        return _each(s, lanes)
    return inner


def _each(s: Stmt, lanes: _Lanes) -> Stmt:
    if lanes.guard is not None:
        s = If(lanes.guard, s, None)
    last_first: dict[Any, Any] = {lanes.var: (lanes.n - 1) - lanes.var}
    root = s.map(lambda x: x)
    return loop(lanes.var, lanes.n, substitute(root, last_first))


def _for(s: For, lanes: _Lanes) -> Stmt | None:
    if variables(s.extent):
        return None
    body = _together(s.body, lanes)
    return For(s.var, s.extent, s.kind, body)


def _if(s: If, lanes: _Lanes) -> Stmt | None:
    if loads(s.condition):
        return None
    arms = [_arm(s.then, s.condition, lanes)]
    if s.otherwise is not None:
        arms.append(_arm(s.otherwise, ~s.condition, lanes))
    return block(*arms)


def _arm(
    s: Stmt,
    condition: Expr,
    lanes: _Lanes,
) -> Stmt:
    if lanes.guard is None:
        guard = condition
    else:
        guard = lanes.guard & condition
    return _together(s, replace(lanes, guard=guard))


def _alloc(s: Alloc, lanes: _Lanes) -> Stmt:
    """Give each lane its own buffer."""
    old = s.buffer
    shape = (max(lanes.n, 1), *old.shape)
    new = Buffer(old.name, shape, old.dtype, old.scope)

    def own(index: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        return new, (lanes.var, *index)

    body = edit.rewrite(s.body, {}, moves={old: own})
    return Alloc(new, _together(body, lanes))


_RULES: Mapping[type[Stmt], Callable[[Any, _Lanes], Stmt | None]] = {
    Block: lambda s, lanes: block(*(_together(x, lanes) for x in s.stmts)),
    Unit: lambda s, lanes: _together(s.body, lanes),
    For: _for,
    If: _if,
    Alloc: _alloc,
}
