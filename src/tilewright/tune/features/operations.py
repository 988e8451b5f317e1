"""The arithmetic of a statement: how often each kind of operation stands in it.

Each distinct subexpression of a value counts once, as it is computed once. The arithmetic of the
indices of loads is none of it: see `indices.Index`.
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

# By class of the operation and dtype of its operands.
Operations = Mapping[tuple[type[Expr], DType], int]
Counts = dict[tuple[type[Expr], DType], int]


def count(
    roots: tuple[Expr, ...],
    found: Counts,
    loads: list[Load],
    indices: Indices | None = None,
) -> None:
    """Add the operations below `roots` to `found`, and their distinct loads to `loads`.

    indices: reads sums over loops in values, which count as the sums of multiples that they are.
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
    """Count a sum over loops, if it is one."""
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
    """What tells how expensive an operation is: its operands' dtype, that of the result of some."""
    if isinstance(e, Call | Select):
        return e.dtype
    assert isinstance(operand, Expr)
    return operand.dtype


@lru_cache(maxsize=256)
def of_reducer(reducer: Reducer) -> Operations:
    """The operations of one step of a reduction."""
    found: Counts = {}
    count(reducer.result, found, [])
    return found
