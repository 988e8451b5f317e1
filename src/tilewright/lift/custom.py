"""User-defined combine operators: functions of two scalars, or of two tuples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilewright.base.errors import UnsupportedError
from tilewright.compute.operator import checked
from tilewright.compute.reducer import Reducer
from tilewright.expr.nodes import Const, Expr, Var
from tilewright.lift.views import View, scalar

_FOLD = "Reduce needs an associative function and its neutral element; ReduceSeq takes any fold"


def custom_reducer(
    f: Callable[..., View], init: Sequence[View], element: Sequence[Expr]
) -> Reducer:
    """The operator `f` on tuples of scalars, with the neutral element `init`.

    Raises UnsupportedError where its two arguments differ in type or `init` is not a constant,
    InputError (TW-OPERATOR) where a small example shows that `f` is not associative or `init` not
    neutral. Whether it commutes is tried in the same way.
    """
    start = tuple(map(scalar, init))
    identity = tuple(c for c in start if isinstance(c, Const))
    constant = len(identity) == len(start)
    same_types = [c.dtype for c in start] == [x.dtype for x in element]
    if not constant or not same_types:
        raise no_operator()
    lhs = tuple(Var(f"a{k}", c.dtype) for k, c in enumerate(start))
    rhs = tuple(Var(f"b{k}", c.dtype) for k, c in enumerate(start))
    if len(start) == 1:
        combined = (f(lhs[0], rhs[0]),)
    else:
        combined = f(lhs, rhs)
    result = tuple(map(scalar, combined))
    op = Reducer("of a reduction", lhs, rhs, result, identity)
    return replace(checked(op, hint=_FOLD), name="op")


def no_operator() -> UnsupportedError:
    """The error for a function that is a fold only."""
    return UnsupportedError(
        "it is not a combine operator: its two arguments are not alike",
        code="TW-LIFT-FOLD",
        where="function of a reduction",
        hint="use ReduceSeq, which takes any fold and its start",
    )
