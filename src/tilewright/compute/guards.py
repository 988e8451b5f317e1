"""Guarded reads: `Select(inside, tensor[index], c)`, c where the index leaves the tensor.

Rewrites that redirect the read, for example to a tensor with a border, rewrite the guard. So the
guard must hold exactly for those points of the ranges whose index is inside the tensor:

    weaker    the read leaves the tensor, or reads adjacent memory
    stronger  elements inside have the value c, as when the tensor is part of a larger one
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import (
    INDEX,
    And,
    Const,
    Expr,
    FloorDiv,
    Le,
    Load,
    Lt,
    Select,
    Var,
    as_expr,
    const,
)
from tilewright.expr.simplify import simplify
from tilewright.ir.node import postorder

Ranges = Mapping[Var, tuple[int, int]]


def inside(load: Load, ranges: Ranges) -> list[Expr]:
    """The conditions for the index to be inside the tensor that the ranges leave open."""
    found: dict[Expr, None] = {}
    for i, extent in zip(load.index, load.buffer.extents, strict=True):
        not_below = Le(const(0), i)
        not_above = Lt(i, as_expr(extent, INDEX))
        for part in (not_below, not_above):
            reduced = simplify(part, ranges)
            if not _holds(reduced, ranges):
                found[reduced] = None
    return list(found)


def guarded(load: Load, ranges: Ranges) -> Expr:
    """The read, and zero where its index is outside the tensor."""
    conditions = inside(load, ranges)
    if not conditions:
        return load
    return Select(
        reduce(And, conditions),
        load,
        const(0, load.dtype),
    )


def read_or_zero(e: Expr, ranges: Ranges) -> Load | None:
    """The read in `e`, if `e` is `guarded` of it; None for any other expression.

    Zeros of both signs count as zero: sums, which start at +0, do not distinguish them.
    """
    if isinstance(e, Load):
        return e if not inside(e, ranges) else None
    outside = read_or_constant(e, ranges)
    if outside is None or outside.value != 0:
        return None
    assert isinstance(e, Select) and isinstance(e.then, Load)
    return e.then


def _holds(condition: Expr, ranges: Ranges) -> bool:
    """Whether a simplified condition always holds: `i < n`, too, if the ranges say so of some sums,
    such as that a dimension is less than its extent:

        form < 0    where form = t * part + rest, part <= most, t * most + rest < 0, and t > 0
    """
    if isinstance(condition, Const):
        return bool(condition.value)
    if not isinstance(condition, Lt):
        return False
    form = affine(condition.lhs) - affine(condition.rhs)
    known: Mapping[Any, tuple[int | None, int | None]] = ranges
    for part, (_, most) in known.items():
        if not isinstance(part, frozenset) or most is None:
            continue
        for times in _multiples(part, form):
            rest = form - Affine(tuple(part), 0).scaled(times)
            highest = [
                bounds(to_expr(e), ranges)[1] for e in (rest, _without_division(rest))
            ]
            if any(h is not None and h + times * most < 0 for h in highest):
                return True
    return False


def _multiples(part: frozenset[tuple[Expr, int]], form: Affine) -> set[int]:
    """How often `part` may be in `form`: as often as one of its terms is, if that is positive."""
    factors = dict(form.terms)
    pairs = [(factors.get(atom, 0), c) for atom, c in part]
    return {f // c for f, c in pairs if f % c == 0 and f // c > 0}


def _without_division(form: Affine) -> Affine:
    """A sum that is no less: `c * (e // c)`, also times a positive number, is at most `e`."""
    for atom, factor in form.terms:
        match atom:
            case FloorDiv(e, Const(int(c))) if 0 < c <= factor and factor % c == 0:
                most = affine(e).scaled(factor // c)
                form = form - Affine(((atom, factor),), 0) + most
    return form


def read_or_constant(e: Expr, ranges: Ranges) -> Const | None:
    """What a read guarded by all that keeps it inside its tensor, and no more, gives outside.

    requires, else None: a constant where the condition is false; in its conjuncts, but for those
    that always hold, the very conditions of `inside`.
    """
    if not isinstance(e, Select) or not isinstance(e.then, Load):
        return None
    return e.otherwise if keeps_inside(e, ranges) else None  # type: ignore[return-value]


def keeps_inside(e: Select, ranges: Ranges) -> bool:
    """Whether a constant is chosen exactly where some read in `e.then` leaves its tensor."""
    if not isinstance(e.otherwise, Const):
        return False
    wanted = {c for load in loads(e.then) for c in inside(load, ranges)}
    given = set()
    for conjunct in conjuncts(e.condition):
        part = simplify(conjunct, ranges)
        if not _holds(part, ranges):
            given.add(part)
    return given == wanted


def loads(e: Expr) -> list[Load]:
    """The reads in an expression, each once."""
    return [n for n in postorder(e) if isinstance(n, Load)]


def conjuncts(condition: Expr) -> list[Expr]:
    """The distinct conditions that an `and` of conditions joins, in order."""
    found: dict[Expr, None] = {}
    waiting = [condition]
    seen: set[Expr] = set()
    while waiting:
        c = waiting.pop()
        if c in seen:
            continue
        seen.add(c)
        if isinstance(c, And):
            waiting += (c.rhs, c.lhs)
        else:
            found[c] = None
    return list(found)
