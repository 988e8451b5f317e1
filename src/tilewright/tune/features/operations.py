"""The arithmetic of a statement: the count of each kind of operation.

Each distinct subexpression counts once, because it is computed once. Index arithmetic of loads is
excluded: see `indices.Index`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from tilewright.base.dtypes import DType
from tilewright.compute.reducer import Reducer
from tilewright.expr.nodes import (
    INDEX,
    Add,
    Call,
    Const,
    Expr,
    Load,
    Min,
    Mul,
    Neg,
    Overlap,
    Select,
    Sub,
    Var,
)
from tilewright.tune.features.indices import Indices

# Keyed by the operation's class and its operands' dtype.
Operations = Mapping[tuple[type[Expr], DType], int]
Counts = dict[tuple[type[Expr], DType], int]


def count(
    roots: tuple[Expr, ...],
    found: Counts,
    loads: list[Load],
    indices: Indices | None = None,
) -> None:
    """Add the operations below `roots` to `found`, and their distinct loads to `loads`.

    indices: analyzes integer expressions over loops in values, which count in their linear form.
    """
    seen: set[Expr] = set()
    stack = list(reversed(roots))
    while stack:
        e = stack.pop()
        if e in seen:
            continue
        seen.add(e)
        kind = type(e)
        if kind is Load:
            loads.append(e)  # type: ignore[arg-type]
        elif kind is Const or kind is Var:
            continue
        elif indices is None or e.dtype is not INDEX or not _sum(indices, e, found):
            operands = e.children()
            key = (Min if kind is Overlap else kind, _dtype(e, operands[-1]))
            found[key] = found.get(key, 0) + 1
            stack += operands[::-1]  # type: ignore[arg-type]


def _sum(indices: Indices, e: Expr, found: Counts) -> bool:
    """Count a linear combination of loops; returns whether it is one."""
    if not isinstance(e, Add | Sub | Mul | Neg):
        return False
    at = indices(e)
    if at.loads or at.erratic:
        return False
    for kind, n in ((Add, at.additions), (Mul, at.products)):
        if n:
            found[kind, INDEX] = found.get((kind, INDEX), 0) + n
    return True


def _dtype(e: Expr, operand: object) -> DType:
    """The dtype that determines an operation's cost: its operand's, for some its result's."""
    if isinstance(e, Call | Select):
        return e.dtype
    assert isinstance(operand, Expr)
    return operand.dtype


@lru_cache(maxsize=256)
def of_reducer(reducer: Reducer) -> Operations:
    """The operations of one reduction step."""
    found: Counts = {}
    count(reducer.result, found, [])
    return found
