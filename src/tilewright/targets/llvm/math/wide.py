"""float32 functions by way of float64 arithmetic, where float32 alone would lose too much."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.base import dtypes
from tilewright.expr.nodes import Cast, Expr


def through_float64(function: Callable[..., Expr]) -> Callable[..., Expr]:
    """The float32 function that computes `function` in float64 and rounds again."""

    def narrow(*args: Expr) -> Expr:
        return Cast(function(*(Cast(a, dtypes.float64) for a in args)), dtypes.float32)

    return narrow
