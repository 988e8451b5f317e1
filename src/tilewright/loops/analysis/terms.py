"""What an index expression depends on."""

from __future__ import annotations

from functools import lru_cache

from tilewright.expr.nodes import Const, Expr, FloorDiv, Load, Mod, Var, const
from tilewright.expr.reads import loads
from tilewright.ir.node import postorder

__all__ = ["is_zero", "loads", "quotients", "variables"]


@lru_cache(maxsize=1 << 12)
def variables(e: Expr) -> frozenset[Expr]:
    """The variables an expression depends on; a load in it counts as one (contents may change)."""
    return frozenset([n for n in postorder(e) if isinstance(n, Var | Load)])


def is_zero(e: Expr) -> bool:
    """Whether an index is the constant 0."""
    return isinstance(e, Const) and e.value == 0


def quotients(remainder: Mod) -> tuple[Expr, ...]:
    """What with `x % n` makes x: `x // n`, which is `y // (m*n)` where x is `y // m`."""
    whole, modulus = remainder.lhs, remainder.rhs
    if isinstance(modulus, Const) and modulus.value.real <= 0:
        return ()
    plain = FloorDiv(whole, modulus)
    if not isinstance(modulus, Const):
        return (plain,)
    if not isinstance(whole, FloorDiv) or not isinstance(whole.rhs, Const):
        return (plain,)
    divisor = int(whole.rhs.value.real) * int(modulus.value.real)
    return plain, FloorDiv(whole.lhs, const(divisor))
