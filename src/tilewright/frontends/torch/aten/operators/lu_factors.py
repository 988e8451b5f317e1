"""LU factors of matrices with row exchanges, and what is computed from them."""

from __future__ import annotations

import numpy as np

from tilewright.frontends.torch.aten.rules import AtenCall, rule
from tilewright.graph.nodes import Value
from tilewright.graph.ops.terms import TensorTerm

Several = list[Value | None]
_OWN = "tilewright"


@rule("aten.linalg_lu_factor_ex", "aten.linalg_lu_factor")
def _factor(c: AtenCall) -> Several:
    """Both triangles in one matrix, the pivots, and the number of the first one that is zero."""
    return list(_factored(c))


def _factored(c: AtenCall) -> list[Value]:
    _check(c)
    return factors(c, c.tensor("A"))


def _check(c: AtenCall) -> None:
    shape = c.of("A").shape
    if c["pivot"] is False:
        raise c.refuse("it does not exchange rows")
    if type(shape[-1]) is not int or shape[-1] != shape[-2]:
        raise c.refuse(f"its matrices of {list(shape)} are not square")


def factors(c: AtenCall, a: Value) -> list[Value]:
    """The factors, pivots and numbers of zero pivots of square matrices."""
    return c.build.ops("PivotedLU", a, count=3, domain=_OWN)


def kept_factors(c: AtenCall, first: int, turned: bool) -> Several:
    """The results from number `first` on that a backward pass reads: factors and pivots.

    turned: those of the transposed matrix.
    """
    if not (c.uses(first) or c.uses(first + 1)):
        return [None, None]
    a = c.tensor("A")
    if turned:
        a = _turned(c, a)
    found, pivots, _ = factors(c, a)
    return [found, pivots]


@rule("aten.linalg_lu")
def _three_factors(c: AtenCall) -> Several:
    found, pivots, _ = _factored(c)
    return [_exchanges(c, pivots), *_triangles(c, found)]


@rule("aten.lu_unpack")
def _unpacked(c: AtenCall) -> Several:
    shape = c.of("LU_data").shape
    if shape[-1] != shape[-2]:
        raise c.refuse("its matrices are not square")
    found = c.tensor("LU_data")
    pivots = c.tensor("LU_pivots")
    return [_exchanges(c, pivots), *_triangles(c, found)]


def _triangles(c: AtenCall, found: Value) -> list[Value]:
    """The lower factor, with ones on its diagonal, and the upper one."""
    below = c.op("Trilu", found, c.ints(-1), upper=0)
    extent = (found.shape or ())[-1]
    assert isinstance(extent, int)
    unit = c.number(np.eye(extent), found.dtype)
    lower = c.op("Add", below, unit)
    return [lower, c.op("Trilu", found, upper=1)]


def _order(c: AtenCall, pivots: Value) -> Value:
    """The order in which the exchanges leave the rows."""
    return c.op("PivotOrder", pivots, domain=_OWN)


def _exchanges(c: AtenCall, pivots: Value) -> Value:
    """The matrix that undoes the exchanges: its columns are unit vectors, in their order."""
    order = c.unsqueeze(_order(c, pivots), -2)
    extent = (pivots.shape or ())[-1]
    assert isinstance(extent, int)
    rows = np.arange(extent)[:, None]
    there = TensorTerm(c, order).equals(c.build.constant(rows))
    return there.cast(c.dtype).value


@rule("aten.linalg_lu_solve")
def _solved(c: AtenCall) -> Value:
    """By both triangles in turn; from the right by the transposed system."""
    right = not c["left"]
    shape = c.result.shape
    found, pivots, b = (c.tensor(n) for n in ("LU", "pivots", "B"))
    b = c.op("Expand", b, c.sizes(shape))
    if right:
        b = _turned(c, b)
    *batch, rows, columns = shape
    sides = [rows, columns] if not right else [columns, rows]
    square = [*batch, sides[0], sides[0]]
    found = c.op("Expand", found, c.sizes(square))
    places = c.unsqueeze(_order(c, pivots), -1)
    places = c.op("Expand", places, c.sizes([*batch, *sides]))
    if bool(c["adjoint"]) != right:
        b = _by_triangle(c, found, b, upper=1, transpose=1)
        b = _by_triangle(c, found, b, unit=1, transpose=1)
        b = c.op("ScatterElements", b, places, b, axis=-2)
    else:
        b = c.op("GatherElements", b, places, axis=-2)
        b = _by_triangle(c, found, b, unit=1)
        b = _by_triangle(c, found, b, upper=1)
    if right:
        b = _turned(c, b)
    return b


def _by_triangle(c: AtenCall, a: Value, b: Value, **how: int) -> Value:
    return c.op("TriangularSolve", a, b, domain=_OWN, **how)


def _turned(c: AtenCall, x: Value) -> Value:
    rank = len(x.shape or ())
    order = [*range(rank - 2), rank - 1, rank - 2]
    return c.op("Transpose", x, perm=order)
