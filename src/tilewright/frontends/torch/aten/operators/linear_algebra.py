"""Determinants, systems of linear equations, and factors of matrices.

A matrix that is singular, or not positive definite, gives NaN where PyTorch raises an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.dtypes import int32
from tilewright.frontends.torch.aten.rules import AtenCall, rule
from tilewright.frontends.torch.aten.terms import TensorTerm
from tilewright.graph.nodes import Value


def _name(c: AtenCall) -> str:
    return "A" if c.has("A") else "self"


def _matrix(c: AtenCall) -> Value:
    return c.tensor(_name(c))


def _size(c: AtenCall) -> int:
    """The number of rows of the matrices."""
    rows = c.extent(c.rank(_name(c)) - 1, _name(c))
    if rows is None:
        raise c.refuse("the size of its matrices is known only at run time")
    return rows


def _ops(
    c: AtenCall, op_type: str, *inputs: Value, count: int = 1, **flags: Any
) -> list[Value]:
    attributes = {name: int(flag) for name, flag in flags.items()}
    return c.build.ops(op_type, *inputs, count=count, domain="tilewright", **attributes)


def _turned(c: AtenCall, x: Value, rank: int, wanted: bool = True) -> Value:
    """`x` with its last two axes exchanged, if wanted."""
    if not wanted:
        return x
    *batch, rows, columns = range(rank)
    return c.op("Transpose", x, perm=[*batch, columns, rows])


def _unit(c: AtenCall, like: Value) -> Value:
    """Unit matrices in the shape of `like`."""
    unit = c.number(np.eye(_size(c)), like.dtype)
    return c.op("Expand", unit, c.op("Shape", like))


# -- determinants


@rule("aten.linalg_det", "aten.det")
def _det(c: AtenCall) -> Value:
    return c.op("Det", _matrix(c))


@rule("aten._linalg_det")
def _det_and_factors(c: AtenCall) -> list[Value | None]:
    return [c.op("Det", _matrix(c)), None, None]


@rule("aten.linalg_slogdet", "aten.slogdet", "aten._linalg_slogdet")
def _slogdet(c: AtenCall) -> list[Value | None]:
    log, sign = _ops(c, "LogDet", _matrix(c), count=2)
    return [sign, log, None, None]


@rule("aten.logdet")
def _logdet(c: AtenCall) -> Value:
    log, sign = _ops(c, "LogDet", _matrix(c), count=2)
    negative = TensorTerm(c, sign) < 0
    return negative.chosen(math.nan, TensorTerm(c, log)).value


# -- systems of equations


def _inverted(c: AtenCall) -> list[Value]:
    """The inverse, and the number of the first pivot that is zero, or 0."""
    a = _matrix(c)
    return _ops(c, "Solve", a, _unit(c, a), count=2)


@rule("aten.linalg_inv_ex")
def _inverse_and_info(c: AtenCall) -> list[Value]:
    return _inverted(c)


@rule("aten.linalg_inv", "aten.inverse")
def _inverse(c: AtenCall) -> Value:
    return _inverted(c)[0]


@rule("aten.linalg_matrix_power")
def _power(c: AtenCall) -> Value:
    """By squaring, the exponent's lowest bit first."""
    a = c.tensor()
    n = int(c["n"])
    if n == 0:
        return _unit(c, a)
    if n < 0:
        a = _inverted(c)[0]
    found = None
    rest = abs(n)
    while rest:
        if rest % 2:
            found = a if found is None else c.op("MatMul", found, a)
        rest //= 2
        if rest:
            a = c.op("MatMul", a, a)
    assert found is not None
    return found


def _solved(c: AtenCall) -> list[Value]:
    """The solution, and the number of the first pivot that is zero, or 0.

    The right-hand sides are vectors if they have one axis less than the matrices.
    """
    sizes = [str(n) for n in c.of("A").shape]
    shape = list(c.of("B").shape)
    vectors = len(shape) == 1 or [str(n) for n in shape] == sizes[:-1]
    sides = c.tensor("B")
    if vectors:
        sides = c.unsqueeze(sides, len(shape))
        shape.append(1)
    a, b, rank = _same_batch(c, "A", sides, shape)
    right = not c["left"]
    left_side = _turned(c, a, rank, right)
    found, info = _ops(c, "Solve", left_side, _turned(c, b, rank, right), count=2)
    found = _turned(c, found, rank, right)
    if vectors:
        found = c.squeeze(found, -1)
    return [found, info]


@rule("aten._linalg_solve_ex")
def _solve_and_factors(c: AtenCall) -> list[Value | None]:
    found, info = _solved(c)
    return [found, None, None, info]


@rule("aten.linalg_solve_ex")
def _solve_and_info(c: AtenCall) -> list[Value]:
    return _solved(c)


@rule("aten.linalg_solve")
def _solve(c: AtenCall) -> Value:
    return _solved(c)[0]


def _same_batch(
    c: AtenCall, name: str, sides: Value, shape: Sequence[Any]
) -> tuple[Value, Value, int]:
    """A matrix and right-hand sides of this shape with one batch, and their rank."""
    operands = c.tensor(name), sides
    shapes = list(c.of(name).shape), list(shape)
    first, second = ([str(n) for n in held[:-2]] for held in shapes)
    if first == second:
        return *operands, len(shape)
    if not all(type(n) is int for held in shapes for n in held):
        raise c.refuse("it broadcasts a batch whose extent is known only at run time")
    batch = np.broadcast_shapes(*(held[:-2] for held in shapes))
    sizes = [c.ints(*batch, *held[-2:]) for held in shapes]
    a, b = (c.op("Expand", x, s) for x, s in zip(operands, sizes, strict=True))
    return a, b, len(batch) + 2


# -- triangular matrices


@rule("aten.linalg_cholesky_ex")
def _cholesky_and_info(c: AtenCall) -> list[Value]:
    """The info is the number of the first pivot that is not positive, or 0."""
    lower = _lower_factor(c)
    return [_turned(c, lower, c.rank(), c["upper"]), _first_bad(c, lower)]


@rule("aten.linalg_cholesky", "aten.cholesky")
def _cholesky(c: AtenCall) -> Value:
    return _turned(c, _lower_factor(c), c.rank(), c["upper"])


def _lower_factor(c: AtenCall) -> Value:
    x = _turned(c, c.tensor(), c.rank(), c["upper"])
    return _ops(c, "Cholesky", x)[0]


def _first_bad(c: AtenCall, lower: Value) -> Value:
    """Counted from the last row, the first pivot is n and the last one 1."""
    n = _size(c)
    places = c.number(np.diag(np.arange(n, 0, -1)), int32)
    good = TensorTerm(c, lower) > 0
    bad = (~good).chosen(TensorTerm(c, places), 0)
    rows = c.op("ReduceMax", bad.value, c.ints(-2, -1), keepdims=0)
    last = TensorTerm(c, rows)
    return (last > 0).chosen(n + 1 - last, 0).value


@rule("aten.linalg_solve_triangular")
def _solve_triangular(c: AtenCall) -> Value:
    a, b, rank = _same_batch(c, "self", c.tensor("B"), c.of("B").shape)
    right = not c["left"]
    how = {"upper": c["upper"], "transpose": right, "unit": c["unitriangular"]}
    found = _by_triangle(c, a, _turned(c, b, rank, right), **how)
    return _turned(c, found, rank, right)


@rule("aten.triangular_solve")
def _triangular_solve(c: AtenCall) -> list[Value]:
    a, b, _ = _same_batch(c, "A", c.tensor(), c.of("self").shape)
    how = {"transpose": c["transpose"], "unit": c["unitriangular"]}
    return [_by_triangle(c, a, b, upper=c["upper"], **how), a]


def _by_triangle(c: AtenCall, a: Value, b: Value, **flags: bool) -> Value:
    return _ops(c, "TriangularSolve", a, b, **flags)[0]


@rule("aten.cholesky_solve")
def _cholesky_solve(c: AtenCall) -> Value:
    factor, sides, _ = _same_batch(c, "input2", c.tensor(), c.of("self").shape)
    return _by_factor(c, factor, sides)


@rule("aten.cholesky_inverse")
def _cholesky_inverse(c: AtenCall) -> Value:
    factor = c.tensor()
    return _by_factor(c, factor, _unit(c, factor))


def _by_factor(c: AtenCall, factor: Value, sides: Value) -> Value:
    """First by the lower triangle of the product, then by the upper one."""
    upper = bool(c["upper"])
    half = _by_triangle(c, factor, sides, upper=upper, transpose=upper)
    return _by_triangle(c, factor, half, upper=upper, transpose=not upper)
