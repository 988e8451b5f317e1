"""Singular values, eigenvalues of symmetric matrices, orthogonal factors, and pseudoinverses.

The signs of vectors are not PyTorch's, except for those of `linalg.qr`. Where PyTorch raises an
error because an entry is not finite, all results are NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.frontends.torch.aten.operators.lu_factors import extents, transposed
from tilewright.frontends.torch.aten.rules import AtenCall, rule
from tilewright.graph.nodes import Value
from tilewright.graph.ops.terms import TensorTerm

Several = list[Value | None]


def _own(c: AtenCall, op_type: str, x: Value, count: int, **how: int) -> list[Value]:
    return c.build.ops(op_type, x, count=count, domain="tilewright", **how)


def _constant(c: AtenCall, name: str, matrix: Any) -> Value:
    """The same matrix, or vector, for each matrix of the batch of an argument."""
    batch = c.of(name).shape[:-2]
    if not all(type(n) is int for n in batch):
        raise c.refuse(
            "its matrices are empty, and their number is known only at run time"
        )
    found = np.broadcast_to(matrix, (*batch, *np.shape(matrix)))
    return c.build.constant(found.astype(c.dtype.numpy))


# -- singular values


def _svd(c: AtenCall, name: str, full: bool) -> list[Value]:
    """The left vectors by columns, the values, the right vectors by rows."""
    rows, columns = extents(c, name)
    if not min(rows, columns):
        left = np.eye(rows, rows if full else 0)
        right = np.eye(columns if full else 0, columns)
        parts = (left, np.zeros(0), right)
        return [_constant(c, name, part) for part in parts]
    x = c.tensor(name)
    wide = rows < columns
    if wide:
        x = transposed(c, x)
    found = _own(c, "SVD", x, 3, full=int(full))
    if not wide:
        return found
    first, values, last = found
    return [transposed(c, last), values, transposed(c, first)]


@rule("aten.linalg_svd", "aten._linalg_svd")
def _factors(c: AtenCall) -> Several:
    left, values, right = _svd(c, "A", bool(c["full_matrices"]))
    if c["compute_uv"] is False:
        left = _empty(c, 0)
        right = _empty(c, 2)
    return [left, values, right]


def _empty(c: AtenCall, result: int) -> Value:
    """In place of a result that is not computed: zeros in its shape."""
    about = c.node.meta["val"][result]
    zeros = np.zeros(tuple(about.shape), c.dtype.numpy)
    return c.build.constant(zeros)


@rule("aten.linalg_svdvals")
def _values(c: AtenCall) -> Value:
    return _svd(c, "A", full=False)[1]


@rule("aten.linalg_pinv.atol_rtol_tensor")
def _pseudoinverse(c: AtenCall) -> Value:
    """By the values above a threshold; by the absolute eigenvalues of symmetric matrices."""
    rows, columns = extents(c, "self")
    if not rows or not columns:
        return _constant(c, "self", np.zeros((columns, rows)))
    if c["hermitian"]:
        values, left = _eigen(c, "self", lower=True)
        right = transposed(c, left)
        order = TensorTerm(c, c.op("Abs", values))
    else:
        left, values, right = _svd(c, "self", full=False)
        order = TensorTerm(c, values)
    largest = order.op("ReduceMax", c.ints(-1), keepdims=1)
    kept = order > _threshold(c, largest, max(rows, columns))
    inverse = kept.chosen(1.0 / TensorTerm(c, values), 0)
    scaled = TensorTerm(c, left) * c.unsqueeze(inverse.value, -2)
    return transposed(c, scaled.op("MatMul", right).value)


def _threshold(c: AtenCall, largest: TensorTerm, size: int) -> TensorTerm:
    """The larger one of two tolerances; the relative one is 0 by default beside an absolute one."""
    dtype = c.dtype
    epsilon = size * float(np.finfo(dtype.numpy).eps)

    def given(name: str) -> TensorTerm:
        return TensorTerm(c, c.unsqueeze(c.tensor(name, dtype), -1))

    if c.has("rtol"):
        relative = given("rtol")
    elif c.has("atol"):
        is_given = given("atol") > 0
        default = TensorTerm(c, c.number(epsilon, dtype))
        relative = is_given.chosen(0, default)
    else:
        return largest * epsilon
    found = relative * largest
    if c.has("atol"):
        return found.op("Max", given("atol"))
    return found


# -- eigenvalues


def _eigen(c: AtenCall, name: str, lower: bool) -> list[Value]:
    """The eigenvalues, rising, and the vectors by columns, by one triangle of the matrices."""
    rows, columns = extents(c, name)
    if rows != columns:
        raise c.refuse(f"its matrices are {rows} x {columns}")
    if not rows:
        values = _constant(c, name, np.zeros(0))
        vectors = _constant(c, name, np.zeros((0, 0)))
        return [values, vectors]
    x = c.tensor(name)
    upper = int(not lower)
    half = c.op("Trilu", x, upper=upper)
    next_to_it = c.ints(-1 if lower else 1)
    beside = c.op("Trilu", x, next_to_it, upper=upper)
    whole = c.op("Add", half, transposed(c, beside))
    return _own(c, "SymmetricEigen", whole, 2)


def _lower(c: AtenCall) -> bool:
    return str(c["UPLO"]).upper() == "L"


@rule("aten._linalg_eigh")
def _eigenvalues_and_vectors(c: AtenCall) -> Several:
    values, vectors = _eigen(c, "A", _lower(c))
    if c["compute_v"] is False:
        vectors = _empty(c, 1)
    return [values, vectors]


@rule("aten.linalg_eigh", "aten.linalg_eigvalsh")
def _eigenvalues(c: AtenCall) -> Value | list[Value]:
    found = _eigen(c, "self", _lower(c))
    return found[0] if "vals" in c.name else found


# -- orthogonal factors


@rule("aten.linalg_qr")
def _orthogonal_factors(c: AtenCall) -> Sequence[Value]:
    rows, columns = extents(c, "A")
    mode = str(c["mode"])
    full = mode == "complete"
    if not rows or not columns:
        width = rows if full else 0
        q = _constant(c, "A", np.eye(rows, width))
        r = _constant(c, "A", np.zeros((width, columns)))
    else:
        q, r = _own(c, "QR", c.tensor("A"), 2, full=int(full))
    if mode == "r":
        q = c.build.constant(np.zeros(0, c.dtype.numpy))
    return [q, r]
