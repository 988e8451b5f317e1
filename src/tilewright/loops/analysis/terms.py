"""What an index expression depends on."""

from __future__ import annotations

from functools import lru_cache

from tilewright.expr.nodes import Const, Expr, Load, Var
from tilewright.expr.reads import loads
from tilewright.ir.node import postorder

__all__ = ["is_zero", "loads", "variables"]


@lru_cache(maxsize=1 << 14)
def variables(e: Expr) -> frozenset[Expr]:
    """The variables an expression depends on; a load in it counts as one (contents may change)."""
    return frozenset([n for n in postorder(e) if isinstance(n, Var | Load)])


def is_zero(e: Expr) -> bool:
    """Whether an index is the constant 0."""
    return isinstance(e, Const) and e.value == 0
