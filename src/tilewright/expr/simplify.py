"""Normal forms of expressions: the algebraic rules, then what bounds decide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.expr.affine import affine, to_expr
from tilewright.expr.bounds import bounds
from tilewright.expr.fold import fold
from tilewright.expr.nodes import INDEX, Const, Expr, FloorDiv, Max, Min, Mod, Select, Var, const
from tilewright.ir.node import transform


def simplify(e: Expr, env: Mapping[Var, tuple[int, int]] | None = None) -> Expr:
    """An equal expression in normal form."""
    known: Mapping[Any, tuple[int, int]] = env or {}

    def step(n: Expr) -> Expr:
        found = fold(n) if n.dtype.is_int or n.dtype.is_bool else None
        if found is not None:
            return found
        if isinstance(n, Select) and isinstance(n.condition, Const):
            return n.then if n.condition.value else n.otherwise
        if n.dtype.is_bool:
            lo, hi = bounds(n, known)
            return const(lo, n.dtype) if lo == hi and lo is not None else n
        if n.dtype is not INDEX:
            return n
        form = to_expr(affine(n))
        if isinstance(n, (FloorDiv, Mod)) and isinstance(n.rhs, Const):
            lo, hi = bounds(n.lhs, known)
            d = int(n.rhs.value.real)
            if lo is not None and hi is not None and d > 0 and lo // d == hi // d:
                return const(lo // d) if isinstance(n, FloorDiv) else to_expr(affine(n.lhs - lo // d * d))
        if isinstance(n, (Min, Max)):
            lo, hi = bounds(n.lhs - n.rhs, known)
            if hi is not None and hi <= 0:
                return n.lhs if isinstance(n, Min) else n.rhs
            if lo is not None and lo >= 0:
                return n.rhs if isinstance(n, Min) else n.lhs
        return form

    return transform(e, step)  # type: ignore[no-any-return]
