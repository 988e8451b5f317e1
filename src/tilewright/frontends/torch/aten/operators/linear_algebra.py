"""Determinants, systems of linear equations, and factors of matrices.

A matrix that is singular, or not positive definite, gives NaN where PyTorch raises an error.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright.base.dtypes import int32
from tilewright.frontends.torch.aten.operators.lu_factors import kept_factors
from tilewright.frontends.torch.aten.rules import AtenCall, rule
from tilewright.graph.nodes import Value
from tilewright.graph.ops.terms import TensorTerm

Several = list[Value | None]


def _own(c: AtenCall, op_type: str, *inputs: Value, **flags: Any) -> list[Value]:
    """Apply an operator of this compiler: both of its results."""
    domain = "tilewright"
    return c.build.ops(op_type, *inputs, count=2, domain=domain, **flags)


def _matrix_name(c: AtenCall) -> str:
    if c.has("A"):
        return "A"
    return "self"


def _matrix(c: AtenCall) -> Value:
    name = _matrix_name(c)
    return c.tensor(name)


def _size(c: AtenCall) -> int:
    """The number of rows of the matrices."""
    shape = c.of(_matrix_name(c)).shape
    rows = shape[-1]
    if type(rows) is not int:
        raise c.refuse("the size of its matrices is known only at run time")
    return rows


def _turned(c: AtenCall, x: Value, wanted: bool) -> Value:
    """Matrices in the rank of the operator's, transposed if wanted."""
    if not wanted:
        return x
    rank = c.rank(_matrix_name(c))
    result = len(c.result.shape)
    *batch, rows, columns = range(max(rank, result))
    order = [*batch, columns, rows]
    return c.op("Transpose", x, perm=order)


def _unit(c: AtenCall, like: Value) -> Value:
    """Unit matrices in the shape of `like`."""
    numbers = np.eye(_size(c))
    unit = c.number(numbers, like.dtype)
    shape = c.op("Shape", like)
    return c.op("Expand", unit, shape)


# -- determinants


@rule("aten.linalg_det", "aten.det")
def _det(c: AtenCall) -> Value:
    a = _matrix(c)
    return c.op("Det", a)


@rule("aten._linalg_det")
def _det_and_factors(c: AtenCall) -> Several:
    a = _matrix(c)
    found = c.op("Det", a)
    return [found, *_factors_of_turned(c, 1)]


def _factors_of_turned(c: AtenCall, first: int) -> Several:
    """As PyTorch's: the factors of the transposed matrix, whose determinant is the same, unless
    the matrix has gaps or is itself transposed."""
    if not (c.uses(first) or c.uses(first + 1)):
        return [None, None]
    turned = c.of("A").is_contiguous()
    return kept_factors(c, first, turned)


@rule("aten.linalg_slogdet", "aten.slogdet", "aten._linalg_slogdet")
def _slogdet(c: AtenCall) -> Several:
    a = _matrix(c)
    log, sign = _own(c, "LogDet", a)
    return [sign, log, *_factors_of_turned(c, 2)]


@rule("aten.logdet")
def _logdet(c: AtenCall) -> Value:
    a = _matrix(c)
    log, sign = _own(c, "LogDet", a)
    negative = TensorTerm(c, sign) < 0
    positive = TensorTerm(c, log)
    found = negative.chosen(math.nan, positive)
    return found.value


# -- systems of equations


def _inverted(c: AtenCall) -> list[Value]:
    """The inverse, and the number of the first pivot that is zero, or 0."""
    a = _matrix(c)
    unit = _unit(c, a)
    return _own(c, "Solve", a, unit)


@rule("aten.linalg_inv_ex")
def _inverse_and_info(c: AtenCall) -> list[Value]:
    return _inverted(c)


@rule("aten.linalg_inv", "aten.inverse")
def _inverse(c: AtenCall) -> Value:
    inverse, _ = _inverted(c)
    return inverse


@rule("aten.linalg_matrix_power")
def _power(c: AtenCall) -> Value:
    """By squaring, the exponent's lowest bit first."""
    a = c.tensor()
    n = int(c["n"])
    if n == 0:
        return _unit(c, a)
    if n < 0:
        a, _ = _inverted(c)
    found = None
    for bit in reversed(f"{abs(n):b}"):
        if found is None:
            found = a if bit == "1" else None
        elif bit == "1":
            found = c.op("MatMul", found, a)
        a = c.op("MatMul", a, a)
    assert found is not None
    return found


def _solved(c: AtenCall) -> list[Value]:
    """The solution, and the number of the first pivot that is zero, or 0.

    The right-hand sides are vectors if they have one axis less than the matrices.
    """
    rows = list(map(str, c.of("A").shape))
    shape = list(c.of("B").shape)
    sides = c.tensor("B")
    alone = len(shape) == 1
    vectors = alone or list(map(str, shape)) == rows[:-1]
    if vectors:
        sides = c.unsqueeze(sides, len(shape))
    right = not c["left"]
    matrix = c.tensor("A")
    a, b = _together(c, matrix, sides)
    a = _turned(c, a, right)
    b = _turned(c, b, right)
    found, info = _own(c, "Solve", a, b)
    found = _turned(c, found, right)
    if vectors:
        found = c.squeeze(found, -1)
    return [found, info]


@rule("aten._linalg_solve_ex")
def _solve_and_factors(c: AtenCall) -> Several:
    found, info = _solved(c)
    return [found, *kept_factors(c, 1, turned=False), info]


@rule("aten.linalg_solve_ex")
def _solve_and_info(c: AtenCall) -> list[Value]:
    return _solved(c)


@rule("aten.linalg_solve")
def _solve(c: AtenCall) -> Value:
    found, _ = _solved(c)
    return found


def _together(c: AtenCall, a: Value, b: Value) -> tuple[Value, Value]:
    """Matrices and their right-hand sides, each over the batches of both."""
    return _spread(c, a, b), _spread(c, b, a)


def _spread(c: AtenCall, x: Value, other: Value) -> Value:
    """Matrices over the batch of others, too."""
    batch = c.op("Shape", other, end=-2)
    sizes = c.op("Concat", batch, c.ints(1, 1), axis=0)
    return c.op("Expand", x, sizes)


# -- triangular matrices


@rule("aten.linalg_cholesky_ex")
def _cholesky_and_info(c: AtenCall) -> list[Value]:
    """The info is the number of the first pivot that is not positive, or 0."""
    lower = _lower_factor(c)
    info = _first_bad(c, lower)
    factor = _turned(c, lower, c["upper"])
    return [factor, info]


@rule("aten.linalg_cholesky", "aten.cholesky")
def _cholesky(c: AtenCall) -> Value:
    lower = _lower_factor(c)
    return _turned(c, lower, c["upper"])


def _lower_factor(c: AtenCall) -> Value:
    x = c.tensor()
    x = _turned(c, x, c["upper"])
    return c.op("Cholesky", x, domain="tilewright")


def _first_bad(c: AtenCall, lower: Value) -> Value:
    """Counted from the last row, the first pivot is n and the last one 1."""
    n = _size(c)
    numbers = np.arange(n, 0, -1)
    diagonal = np.diag(numbers)
    constant = c.number(diagonal, int32)
    places = TensorTerm(c, constant)
    good = TensorTerm(c, lower) > 0
    bad = (~good).chosen(places, 0)
    axes = c.ints(-2, -1)
    first = c.op("ReduceMax", bad.value, axes, keepdims=0)
    last = TensorTerm(c, first)
    number = n + 1 - last
    found = (last > 0).chosen(number, 0)
    return found.value


@rule("aten.linalg_solve_triangular")
def _solve_triangular(c: AtenCall) -> Value:
    right = not c["left"]
    upper = bool(c["upper"])
    unit = bool(c["unitriangular"])
    a, b = _together(c, c.tensor(), c.tensor("B"))
    b = _turned(c, b, right)
    found = _by_triangle(c, a, b, upper, right, unit)
    return _turned(c, found, right)


def _by_triangle(
    c: AtenCall, a: Value, b: Value, upper: bool, transpose: bool, unit: bool = False
) -> Value:
    return c.op(
        "TriangularSolve",
        a,
        b,
        domain="tilewright",
        upper=int(upper),
        transpose=int(transpose),
        unit=int(unit),
    )


@rule("aten.cholesky_solve")
def _cholesky_solve(c: AtenCall) -> Value:
    factor, sides = _together(c, c.tensor("input2"), c.tensor())
    return _by_factor(c, factor, sides)


@rule("aten.cholesky_inverse")
def _cholesky_inverse(c: AtenCall) -> Value:
    factor = c.tensor()
    unit = _unit(c, factor)
    return _by_factor(c, factor, unit)


def _by_factor(c: AtenCall, factor: Value, sides: Value) -> Value:
    """First by the lower triangle of the product, then by the upper one."""
    upper = bool(c["upper"])
    half = _by_triangle(c, factor, sides, upper, upper)
    return _by_triangle(c, factor, half, upper, not upper)
