"""The holes used to write rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.expr.nodes import Expr
from tilewright.lift.lambdas import abstraction
from tilewright.lift.match import FunHole, TermHole, size_holes, type_holes
from tilewright.lift.nodes import Fun, Param, Term, as_term
from tilewright.lift.types import Array, Length, Type

a, b, c, d = type_holes("a b c d")
s, t, u = type_holes("s t u", "scalar")
n, m, k, j, p = size_holes("n m k j p")


def term(name: str, sort: Type) -> TermHole:
    """A hole for a term."""
    return TermHole(name, sort)


def fun(name: str, *sorts: Type) -> FunHole:
    """A hole for a function; the last sort is the result's."""
    return FunHole(name, sorts[:-1], sorts[-1])


def arr(item: Type, *sizes: Length) -> Type:
    """`arr(a, n, m)` is n arrays of m items."""
    for size in reversed(sizes):
        item = Array(item, size)
    return item


def fn(f: Callable[..., Term]) -> Fun:
    """The function that a Python lambda writes, applied (see `lambdas`)."""
    names = f.__code__.co_varnames[: f.__code__.co_argcount]
    params = tuple(Param(name, None) for name in names)
    return abstraction(params, as_term(f(*params)))


def hole(of: Expr | Type) -> Any:
    """A hole where a field holds a Python number or a dtype."""
    return of
