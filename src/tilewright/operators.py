"""What the author of an operator imports: the definition, the two constructors, the functions.

    from tilewright.operators import OpDef, exp, map_, register

Everything here lives further down; this module is the door to it. `docs/operators.md` walks through
a definition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.base.text import did_you_mean
from tilewright.compute.build import cast, map_, padded, reduce_
from tilewright.compute.nodes import CC, PS, PW, Computation
from tilewright.compute.reducer import Reducer
from tilewright.expr.functions import FUNCTIONS
from tilewright.expr.nodes import Buffer, Expr, Max, Min, Select, as_expr, call, const
from tilewright.graph.nodes import DataDependent
from tilewright.graph.ops.registry import OpCall, OpDef, Trait, register


def maximum(a: Expr, b: Any) -> Expr:
    """The larger of two values; a Python number takes the dtype of `a`."""
    return Max(a, as_expr(b, a.dtype))


def minimum(a: Expr, b: Any) -> Expr:
    """The smaller of two values; a Python number takes the dtype of `a`."""
    return Min(a, as_expr(b, a.dtype))


def where(condition: Expr, a: Any, b: Any) -> Expr:
    """`a` where the condition holds, else `b`; only the chosen one is read.

    One of the two may be a Python number, which takes the dtype of the other. Raises TypeError for
    two of them, and for a condition that is no expression.
    """
    if not isinstance(condition, Expr):
        raise TypeError(
            f"where: the condition is {condition!r}, no expression. `==` asks whether two "
            "nodes are the same; the expression is a.eq(b)"
        )
    known = next((v for v in (a, b) if isinstance(v, Expr)), None)
    if known is None:
        raise TypeError(
            f"where: {a!r} and {b!r} have no dtype; write const({a!r}, y.dtype)"
        )
    return Select(condition, as_expr(a, known.dtype), as_expr(b, known.dtype))


def _function(name: str) -> Callable[..., Expr]:
    def apply(*args: Expr) -> Expr:
        return call(name, *args)

    apply.__name__ = name
    apply.__doc__ = f"`{name}` of expressions of one dtype."
    return apply


def __getattr__(name: str) -> Callable[..., Expr]:
    """exp, log, tanh, erf, ...: a scalar function of every name in `expr.functions.FUNCTIONS`."""
    if name not in FUNCTIONS:
        hint = did_you_mean(name, (*__all__, *FUNCTIONS))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}. {hint}")
    return _function(name)


__all__ = [
    "CC",
    "PS",
    "PW",
    "Buffer",
    "Computation",
    "DataDependent",
    "Expr",
    "OpCall",
    "OpDef",
    "Reducer",
    "Trait",
    "call",
    "cast",
    "const",
    "map_",
    "maximum",
    "minimum",
    "padded",
    "reduce_",
    "register",
    "where",
]
