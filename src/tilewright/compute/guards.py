"""Guarded reads: `Select(inside, tensor[index], 0)`, zero where the index leaves the tensor."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from tilewright.expr.nodes import And, Const, Expr, Le, Load, Lt, Select, Var, const
from tilewright.expr.simplify import simplify

Ranges = Mapping[Var, tuple[int, int]]


def inside(load: Load, ranges: Ranges) -> list[Expr]:
    """The conditions for the index to be inside the tensor that the ranges leave open."""
    found: dict[Expr, None] = {}
    for i, extent in zip(load.index, load.buffer.shape, strict=True):
        for part in (Le(const(0), i), Lt(i, const(extent))):
            reduced = simplify(part, ranges)
            if not (isinstance(reduced, Const) and reduced.value):
                found[reduced] = None
    return list(found)


def guarded(load: Load, ranges: Ranges) -> Expr:
    """The read, and zero where its index is outside of the tensor."""
    conditions = inside(load, ranges)
    if not conditions:
        return load
    return Select(reduce(And, conditions), load, const(0, load.dtype))


def read_or_zero(e: Expr, ranges: Ranges) -> Load | None:
    """The read in `e`, if `e` is `guarded` of it; None for any other expression."""
    if isinstance(e, Load):
        return e if not inside(e, ranges) else None
    if not isinstance(e, Select) or not isinstance(e.then, Load):
        return None
    zero = isinstance(e.otherwise, Const) and e.otherwise.value == 0
    given = {simplify(part, ranges) for part in conjuncts(e.condition)}
    return e.then if zero and given == set(inside(e.then, ranges)) else None


def conjuncts(condition: Expr) -> list[Expr]:
    """The conditions that an `and` of conditions joins."""
    if isinstance(condition, And):
        return conjuncts(condition.lhs) + conjuncts(condition.rhs)
    return [condition]
