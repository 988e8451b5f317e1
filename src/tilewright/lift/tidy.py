"""Normalizing indices and guards; arithmetic on data stays as written."""

from __future__ import annotations

from tilewright.expr.bounds import Env
from tilewright.expr.nodes import INDEX, And, Const, Expr, Load, Select
from tilewright.expr.simplify import simplify
from tilewright.ir.node import transform


def tidy(e: Expr, env: Env) -> Expr:
    """`e` with simplified indices and conditions; nested guards with one value outside are one."""
    if e.dtype is INDEX:
        return simplify(e, env)

    def node(x: Expr) -> Expr:
        if isinstance(x, Load):
            return Load(x.buffer, tuple(simplify(i, env) for i in x.index))
        if isinstance(x, Select):
            return _select(x, env)
        return x

    return transform(e, node)  # type: ignore[no-any-return]


def _select(x: Select, env: Env) -> Expr:
    condition = simplify(x.condition, env)
    if isinstance(condition, Const):
        return x.then if condition.value else x.otherwise
    if isinstance(x.then, Select) and x.then.otherwise is x.otherwise:
        return Select(_both(condition, x.then.condition), x.then.then, x.otherwise)
    return Select(condition, x.then, x.otherwise)


def _both(a: Expr, b: Expr) -> Expr:
    """`a & b` as it is written without parentheses."""
    if isinstance(b, And):
        return And(_both(a, b.lhs), b.rhs)
    return And(a, b)
