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
    if c["pivot"] is False:
        raise c.refuse("it does not exchange rows")
    extents(c)


def extents(c: AtenCall, name: str = "A") -> tuple[int, int]:
    """The numbers of rows and columns of an argument."""
    rows, columns = (c.extent(axis, name) for axis in (-2, -1))
    if rows is None or columns is None:
        raise c.refuse("the size of its matrices is known only at run time")
    return rows, columns


def factors(c: AtenCall, a: Value) -> list[Value]:
    """The factors, pivots and numbers of zero pivots of matrices."""
    return c.build.ops("PivotedLU", a, count=3, domain=_OWN)


def _first(c: AtenCall, x: Value, axis: int, extent: int, count: int) -> Value:
    """The first elements along an axis of that extent."""
    if extent == count:
        return x
    return c.op("Slice", x, c.ints(0), c.ints(count), c.ints(axis))


def kept_factors(c: AtenCall, first: int, turned: bool) -> Several:
    """The results from number `first` on that a backward pass reads: factors and pivots.

    turned: those of the transposed matrix.
    """
    if not (c.uses(first) or c.uses(first + 1)):
        return [None, None]
    a = c.tensor("A")
    if turned:
        a = transposed(c, a)
    found, pivots, _ = factors(c, a)
    return [found, pivots]


@rule("aten.linalg_lu")
def _three_factors(c: AtenCall) -> Several:
    found, pivots, _ = _factored(c)
    return _unpacked_factors(c, found, pivots, extents(c))


@rule("aten.lu_unpack")
def _unpacked(c: AtenCall) -> Several:
    size = extents(c, "LU_data")
    found = c.tensor("LU_data")
    pivots = c.tensor("LU_pivots")
    return _unpacked_factors(c, found, pivots, size)


def _unpacked_factors(
    c: AtenCall, found: Value, pivots: Value, size: tuple[int, int]
) -> Several:
    """The matrix of the exchanges, and both factors of matrices of that size."""
    exchanges = _exchanges(c, pivots, size[0])
    lower, upper = _triangles(c, found, *size)
    return [exchanges, lower, upper]


def _triangles(c: AtenCall, found: Value, rows: int, columns: int) -> list[Value]:
    """The lower factor, with ones on its diagonal, and the upper one."""
    fewer = min(rows, columns)
    left = _first(c, found, -1, columns, fewer)
    below = c.op("Trilu", left, c.ints(-1), upper=0)
    unit = c.number(np.eye(rows, fewer), found.dtype)
    lower = c.op("Add", below, unit)
    top = _first(c, found, -2, rows, fewer)
    return [lower, c.op("Trilu", top, upper=1)]


def _order(c: AtenCall, pivots: Value, rows: int) -> Value:
    """The order in which the exchanges leave the rows."""
    return c.op("PivotOrder", pivots, domain=_OWN, rows=rows)


def _exchanges(c: AtenCall, pivots: Value, count: int) -> Value:
    """The matrix that undoes the exchanges: its columns are unit vectors, in their order.

    count: of rows; those behind the last pivot are exchanged with themselves.
    """
    order = c.unsqueeze(_order(c, pivots, count), -2)
    rows = np.arange(count)[:, None]
    there = TensorTerm(c, order).equals(c.build.constant(rows))
    return there.cast(c.dtype).value


@rule("aten.linalg_lu_solve")
def _solved(c: AtenCall) -> Value:
    """By both triangles in turn; from the right by the transposed system."""
    right = not c["left"]
    rank = len(c.result.shape)
    rows, _ = extents(c, "LU")
    found, b = together(c, c.tensor("LU"), c.tensor("B"))
    if right:
        b = transposed(c, b, rank)
    places = c.unsqueeze(_order(c, c.tensor("pivots"), rows), -1)
    places = c.op("Expand", places, c.op("Shape", b))
    if bool(c["adjoint"]) != right:
        b = _by_triangle(c, found, b, upper=1, transpose=1)
        b = _by_triangle(c, found, b, unit=1, transpose=1)
        b = c.op("ScatterElements", b, places, b, axis=-2)
    else:
        b = c.op("GatherElements", b, places, axis=-2)
        b = _by_triangle(c, found, b, unit=1)
        b = _by_triangle(c, found, b, upper=1)
    if right:
        b = transposed(c, b, rank)
    return b


def _by_triangle(c: AtenCall, a: Value, b: Value, **how: int) -> Value:
    return c.op("TriangularSolve", a, b, domain=_OWN, **how)


def together(c: AtenCall, a: Value, b: Value) -> tuple[Value, Value]:
    """Matrices and their right-hand sides, each over the batches of both."""
    return _spread(c, a, b), _spread(c, b, a)


def _spread(c: AtenCall, x: Value, other: Value) -> Value:
    """Matrices over the batch of others, too."""
    batch = c.op("Shape", other, end=-2)
    sizes = c.op("Concat", batch, c.ints(1, 1), axis=0)
    return c.op("Expand", x, sizes)


def transposed(c: AtenCall, x: Value, rank: int | None = None) -> Value:
    """Matrices turned; rank: the number of axes, if `x` may not say it."""
    if rank is None:
        rank = len(x.shape or ())
    order = [*range(rank - 2), rank - 1, rank - 2]
    return c.op("Transpose", x, perm=order)
