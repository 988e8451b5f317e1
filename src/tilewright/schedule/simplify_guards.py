"""Removing guards that bounds decide, and finding where along a loop a guard changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.bounds import Env, bounds, lasting, proves, refine
from tilewright.expr.nodes import (
    INDEX,
    And,
    Compare,
    Const,
    Eq,
    Expr,
    Le,
    Lt,
    Max,
    Min,
    Ne,
    Or,
    Select,
    Var,
    const,
)
from tilewright.expr.reads import reads_memory
from tilewright.ir.node import postorder
from tilewright.loops.analysis.terms import variables
from tilewright.loops.nodes import Alloc, Block, For, If, Stmt, Unit, While, block


def simplify_guards(stmt: Stmt, env: Env) -> Stmt:
    """`stmt` without the conditions, minima and maxima that `env` decides.

    env: inclusive bounds of the variables bound outside. The result computes the same wherever
    these hold; a statement that never runs becomes an empty Block.
    """
    rule = _STATEMENTS.get(type(stmt))
    if rule is None:
        return _simple(stmt, env)
    return rule(stmt, env)


def _for(s: For, env: Env) -> Stmt:
    n = s.trips
    if n is not None:
        env = {**env, s.var: (0, max(n - 1, 0))}
    body = simplify_guards(s.body, env)
    if isinstance(body, Block) and not body.stmts:
        return body
    if body is s.body:
        return s
    return For(s.var, s.extent, s.kind, body)


def _if(s: If, env: Env) -> Stmt:
    condition = _undecided(s.condition, env)
    if isinstance(condition, Const):
        arm = s.then if condition.value else s.otherwise
        if arm is None:
            return Block(())
        return simplify_guards(arm, env)
    then = simplify_guards(s.then, lasting(refine(env, condition)))
    other = s.otherwise
    if other is not None:
        other = simplify_guards(other, lasting(refine(env, condition, False)))
    same = condition is s.condition and then is s.then and other is s.otherwise
    return s if same else If(condition, then, other)


def _block(s: Block, env: Env) -> Stmt:
    stmts = [simplify_guards(x, env) for x in s.stmts]
    same = all(x is y for x, y in zip(stmts, s.stmts, strict=True))
    return s if same else block(*stmts)


def _inside(s: Alloc | While, env: Env) -> Stmt:
    body = simplify_guards(s.body, env)
    if body is s.body:
        return s
    return s.replace(body=body)


def _simple(s: Stmt, env: Env) -> Stmt:
    return s.map(lambda e: _expression(e, env) if isinstance(e, Expr) else e)


_STATEMENTS: Mapping[type[Stmt], Callable[[Any, Env], Stmt]] = {
    For: _for,
    If: _if,
    Block: _block,
    Alloc: _inside,
    While: _inside,
    Unit: lambda s, env: s,
}


def _expression(e: Expr, env: Env) -> Expr:
    done: dict[Any, Any] = {}
    for node in postorder(e):
        new = node.map(done.__getitem__)
        if isinstance(new, Select):
            condition = _undecided(new.condition, env)
            if isinstance(condition, Const):
                new = new.then if condition.value else new.otherwise
            elif condition is not new.condition:
                new = Select(condition, new.then, new.otherwise)
        elif isinstance(new, Min | Max) and new.dtype is INDEX:
            new = _extreme(new, env)
        done[node] = new
    found: Expr = done[e]
    return found


def _extreme(e: Min | Max, env: Env) -> Expr:
    less = proves(Le(e.lhs, e.rhs), env)
    if less is None:
        more = proves(Le(e.rhs, e.lhs), env)
        if more is None:
            return e
        less = not more
    if less == isinstance(e, Min):
        return e.lhs
    return e.rhs


def _undecided(condition: Expr, env: Env) -> Expr:
    """`condition` without the parts of a conjunction or disjunction that `env` decides."""
    known = proves(condition, env)
    if known is not None:
        return const(known, condition.dtype)
    if isinstance(condition, And | Or):
        parts = [_undecided(x, env) for x in (condition.lhs, condition.rhs)]
        for x, y in (parts, parts[::-1]):
            if isinstance(x, Const):
                if bool(x.value) == isinstance(condition, And):
                    return y
                return x
        return type(condition)(*parts)
    if isinstance(condition, Compare) and condition.lhs.dtype is INDEX:
        lhs = to_expr(affine(condition.lhs))
        rhs = to_expr(affine(condition.rhs))
        return type(condition)(lhs, rhs)
    return condition


# A comparison `e op 0` is decided where `e - shift` changes its sign.
_SHIFTS: Mapping[type[Compare], tuple[int, ...]] = {
    Lt: (0,),
    Le: (1,),
    Eq: (0, 1),
    Ne: (0, 1),
}


def changes(body: Stmt, var: Var, env: Env) -> set[int]:
    """The values of `var` from which on some guard, minimum or maximum is decided, or no longer.

    A guard that is linear in `var` is certain beyond one value and impossible beyond another,
    whatever the other variables in it are within `env`.
    """
    found: set[int] = set()
    for condition in _conditions(body):
        form = affine(condition.lhs) - affine(condition.rhs)
        for shift in _SHIFTS[type(condition)]:
            found |= _edges(Affine(form.terms, form.const - shift), var, env)
    return found


def _conditions(body: Stmt) -> Iterator[Compare]:
    for node in postorder(body):
        if isinstance(node, Min | Max) and node.dtype is INDEX:
            yield Le(node.lhs, node.rhs)
        elif (
            isinstance(node, Compare)
            and node.lhs.dtype is INDEX
            and not reads_memory(node)
        ):
            yield node


def _edges(form: Affine, var: Var, env: Env) -> set[int]:
    """Where along `var` the condition `form < 0` begins or ceases to be decided."""
    c = form.coefficient(var)
    lo: int | None = form.const
    hi: int | None = form.const
    for atom, a in form.terms:
        if atom is var:
            continue
        low, high = bounds(atom, env)
        if (
            var in variables(atom)
            or low is None
            or high is None
            or lo is None
            or hi is None
        ):
            return set()
        lo = lo + min(a * low, a * high)
        hi = hi + max(a * low, a * high)
    if c == 0 or lo is None or hi is None:
        return set()
    if c > 0:
        return {-(hi // c), -(lo // c)}
    return {hi // -c + 1, lo // -c + 1}
