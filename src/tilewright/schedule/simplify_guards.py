"""Removing guards that bounds decide, and finding where along a loop a guard changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, pairwise
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
    FloorDiv,
    Le,
    Lt,
    Max,
    Min,
    Ne,
    Or,
    Overlap,
    Select,
    Var,
    const,
)
from tilewright.expr.reads import reads_memory
from tilewright.ir.node import Node, postorder
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
        elif isinstance(new, Min | Max | Overlap) and new.dtype is INDEX:
            new = _extreme(new, env)
        done[node] = new
    found: Expr = done[e]
    return found


def _extreme(e: Min | Max | Overlap, env: Env) -> Expr:
    less = proves(Le(e.lhs, e.rhs), env)
    if less is None:
        more = proves(Le(e.rhs, e.lhs), env)
        if more is None:
            return e
        less = not more
    if less == isinstance(e, Max):
        return e.rhs
    return e.lhs


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
# Of how many sums at most a condition on sums of minima is taken to speak.
_READINGS = 8


def guards(root: Node) -> list[Expr]:
    """The expressions that decide something by indices: comparisons, minima and maxima."""
    return [n for n in postorder(root) if isinstance(n, Expr) and conditions(n)]


def conditions(e: Expr) -> tuple[Compare, ...]:
    """The comparisons by which a guard is decided, if one of them always holds; none of others."""
    if isinstance(e, Min | Max | Overlap) and e.dtype is INDEX:
        less = Le(e.lhs, e.rhs)
        more = Le(e.rhs, e.lhs)
        return (less, more)
    if isinstance(e, Compare) and e.lhs.dtype is INDEX and not reads_memory(e):
        return (e,)
    return ()


def is_decided(e: Expr, env: Env) -> bool:
    """Whether `env` decides a guard."""
    found = [proves(c, env) for c in conditions(e)]
    return True in found or None not in found


def stretch(found: Sequence[Expr], var: Var, n: int, env: Env) -> tuple[int, int]:
    """The longest range of the iterations 0..n-1 of `var` in which the set of decidable guards does
    not change, extended to neighboring iterations with the same set.

    env: bounds of the other variables.
    """
    edges = [0, n]
    for point in changes(found, var, env):
        if 0 < point < n:
            edges.append(point)
    edges.sort()

    def decided(guards: Sequence[Expr], start: int, stop: int) -> list[Expr]:
        within = {**env, var: (start, stop - 1)}
        return [g for g in guards if is_decided(g, within)]

    start, stop = max(pairwise(edges), key=lambda e: e[1] - e[0])
    same = decided(found, start, stop)
    first = edges.index(start)
    last = edges.index(stop)
    for edge in reversed(edges[:first]):
        if decided(same, edge, stop) != same:
            break
        start = edge
    for edge in edges[last + 1 :]:
        if decided(same, start, edge) != same:
            break
        stop = edge
    return start, stop


def changes(found: Iterable[Expr], var: Var, env: Env) -> set[int]:
    """The values of `var` at which some guard becomes decidable, or stops being so.

    A condition that is linear in `var` is always true beyond one value and always false beyond
    another, for all values of its other variables within `env`. A condition on a minimum or maximum
    changes where it does for either operand, one on a quotient about where it does for the
    dividend.
    """
    edges: set[int] = set()
    for condition in chain.from_iterable(map(conditions, found)):
        form = affine(condition.lhs) - affine(condition.rhs)
        for reading in _readings(form, var):
            for shift in _SHIFTS[type(condition)]:
                shifted = Affine(reading.terms, reading.const - shift)
                edges |= _edges(shifted, var, env)
    return edges


def _readings(form: Affine, var: Var) -> list[Affine]:
    """The form with one operand or the other for each minimum or maximum that `var` is in.

    A quotient `x // d` is between `(x - d + 1) / d` and `x / d`: the form times d, with either.
    """
    done: list[Affine] = []
    waiting = [form]
    while waiting and len(done) + len(waiting) <= _READINGS:
        form = waiting.pop()
        for atom, c in form.terms:
            if isinstance(atom, Min | Max | Overlap) and var in variables(atom):
                rest = form - Affine(((atom, c),), 0)
                operands = (atom.lhs, atom.rhs)
                waiting += [rest + affine(x).scaled(c) for x in operands]
                break
            if isinstance(atom, FloorDiv) and var in variables(atom):
                d = affine(atom.rhs)
                if not d.is_const or d.const <= 0:
                    continue
                rest = (form - Affine(((atom, c),), 0)).scaled(d.const)
                most = rest + affine(atom.lhs).scaled(c)
                waiting += [most, most + Affine((), c * (1 - d.const))]
                break
        else:
            done.append(form)
    return done


def _edges(
    form: Affine,
    var: Var,
    env: Env,
) -> set[int]:
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
