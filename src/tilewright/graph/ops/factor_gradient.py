"""Derivatives of factorizations: LU, with and without row exchanges, QR, eigenvalues and SVD.

Sources: Giles, "Collected matrix derivative results for forward and reverse mode algorithmic
differentiation" (2008); Seeger et al., "Auto-differentiating linear algebra" (2017), for QR and
SVD; Roberts and Roberts, "QR and LQ decomposition matrix backpropagation algorithms" (2020), for
wide matrices.

Results are not finite, as PyTorch's, where there is no derivative: of vectors of equal eigenvalues
or singular values, of left vectors of a tall matrix of less than full rank, of QR and LU where a
triangle has a zero on its diagonal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from tilewright.base.dtypes import int64
from tilewright.graph.nodes import Value
from tilewright.graph.ops.derivative import Backward, extents, filled, turned
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.terms import TensorTerm

_OWN: Final = "tilewright"

Term = TensorTerm


def by_triangle(
    f: Fragment,
    a: Value,
    b: Value,
    **flags: int,
) -> Value:
    """The solution x of `a @ x = b` by a triangle of `a`."""
    return f.ops("TriangularSolve", a, b, domain=_OWN, count=1, **flags)[0]


def _turned(
    x: Term,
    f: Fragment,
) -> Term:
    return f.term(turned(f, x.value))


def _triangle(
    f: Fragment,
    x: Term,
    first: int,
    upper: bool,
) -> Term:
    return x.op("Trilu", f.constant(first, int64), upper=int(upper))


def _by_upper_turned(
    f: Fragment,
    x: Term,
    upper: Value,
) -> Term:
    """`x` times the inverse of a transposed upper triangle."""
    rows = turned(f, x.value)
    return f.term(turned(f, by_triangle(f, upper, rows, upper=1)))


def _results(
    f: Fragment,
    call: Backward,
    x: Value,
    count: int,
) -> Sequence[Value]:
    """All results of a factorization, computed again if the model leaves one out."""
    if all(call.wants(i) for i in range(count)):
        return [call.out(i) for i in range(count)]
    op = call.operation
    return f.ops(op.op_type, x, domain=_OWN, count=count, **op.attributes)


def _flow(
    f: Fragment,
    call: Backward,
    i: int,
    like: Value,
) -> Value:
    """The gradient of result `i`, which may be zeros."""
    return call.flow(i) or filled(f, like, 0)


def _part(
    f: Fragment,
    x: Value,
    axis: int,
    first: int,
    end: int,
) -> Value:
    """`x` from one place on an axis, -1 or -2, to another."""
    if (first, end) == (0, extents(x)[axis]):
        return x
    return f.op("Slice", x, f.ints(first), f.ints(end), f.ints(axis))


# -- LU


def lu_gradient(
    f: Fragment,
    call: Backward,
    x: Sequence[Value],
    y: Value,
    g: Value,
) -> list[Value]:
    """Of LU, whose result holds both factors of a square matrix."""
    return [_by_factored(f, y, g).value]


def pivoted_lu_gradient(
    f: Fragment,
    call: Backward,
    x: Sequence[Value],
    y: Value,
    g: Value,
) -> list[Value]:
    """Of PivotedLU: that of the rows in their new order, put back."""
    factors, pivots, _ = _results(f, call, x[0], 3)
    found = _by_factored(f, factors, _flow(f, call, 0, factors)).value
    shape = extents(x[0])
    rows = shape[-2]
    (order,) = f.ops("PivotOrder", pivots, domain=_OWN, count=1, rows=rows)
    places = f.op("Expand", f.unsqueeze(order, -1), f.ints(*shape))
    return [f.op("ScatterElements", found, places, found, axis=-2)]


def _by_factored(
    f: Fragment,
    factors: Value,
    g: Value,
) -> Term:
    """The gradient of what was factored, without exchanges, from that of both factors.

    With L and U in one matrix of any shape. What is below a square is `L2 = A2 / U`, and what is
    beside it is `U2 = L \\ A2`; both are differentiated first.
    """
    rows, columns = extents(factors)[-2:]
    size = min(rows, columns)

    def quarter(
        v: Value,
        row: int,
        column: int,
    ) -> Value:
        ends = ((0, size), (size, rows)), ((0, size), (size, columns))
        part = _part(f, v, -2, *ends[0][row])
        return _part(f, part, -1, *ends[1][column])

    square = quarter(factors, 0, 0)
    flow = f.term(quarter(g, 0, 0))
    if rows > columns:
        below = _by_upper_turned(f, f.term(quarter(g, 1, 0)), square)
        product = f.term(turned(f, quarter(factors, 1, 0))).op("MatMul", below)
        flow = flow - _triangle(f, product, 0, upper=True)
        found = _by_square(f, square, flow)
        return found.op("Concat", below, axis=-2)
    if columns > rows:
        beside = quarter(g, 0, 1)
        solved = by_triangle(f, square, beside, unit=1, transpose=1)
        product = f.term(solved).op("MatMul", turned(f, quarter(factors, 0, 1)))
        flow = flow - _triangle(f, product, -1, upper=False)
        return _by_square(f, square, flow).op("Concat", solved, axis=-1)
    return _by_square(f, square, flow)


def _by_square(
    f: Fragment,
    factors: Value,
    g: Term,
) -> Term:
    """L^-T (tril(L^T gL, -1) + triu(gU U^T)) U^-T."""
    both = f.term(factors)
    unit = f.constant(np.eye(extents(factors)[-1]), factors.dtype)
    lower = _triangle(f, both, -1, upper=False) + unit
    upper = _triangle(f, both, 0, upper=True)
    lower_flow = _triangle(f, g, -1, upper=False)
    upper_flow = _triangle(f, g, 0, upper=True)
    by_lower = _turned(lower, f).op("MatMul", lower_flow)
    by_upper = upper_flow.op("MatMul", _turned(upper, f))
    below = _triangle(f, by_lower, -1, upper=False)
    above = _triangle(f, by_upper, 0, upper=True)
    inner = below + above
    left = by_triangle(f, factors, inner.value, unit=1, transpose=1)
    return _by_upper_turned(f, f.term(left), factors)


# -- QR


def qr_gradient(
    f: Fragment,
    call: Backward,
    x: Sequence[Value],
    y: Value,
    g: Value,
) -> list[Value]:
    """Of a wide matrix [X | Y] = Q [U | V], by V = Q^T Y first, then as of X = Q U."""
    q, r = _results(f, call, x[0], 2)
    rows, columns = extents(x[0])[-2:]
    size = min(rows, columns)
    if extents(q)[-1] > size and call.flow(0) is not None:
        call.refuse(
            f"Q has more than {size} columns, and the others are not determined",
            "take the reduced factors: full=0, or mode='reduced' of torch.linalg.qr",
        )
    by_q = f.term(_part(f, _flow(f, call, 0, q), -1, 0, size))
    by_r = _part(f, _flow(f, call, 1, r), -2, 0, size)
    q = _part(f, q, -1, 0, size)
    r = _part(f, r, -2, 0, size)
    if rows >= columns:
        return [_by_reduced(f, q, r, by_q, by_r).value]
    beside = f.term(_part(f, by_r, -1, size, columns))
    last = f.term(_part(f, x[0], -1, size, columns))
    by_q = by_q + last.op("MatMul", _turned(beside, f))
    first = (_part(f, v, -1, 0, size) for v in (r, by_r))
    found = _by_reduced(f, q, next(first), by_q, next(first))
    by_last = f.op("MatMul", q, beside.value)
    whole = found.op("Concat", by_last, axis=-1)
    return [whole.value]


def _by_reduced(
    f: Fragment,
    q: Value,
    r: Value,
    by_q: Term,
    by_r: Value,
) -> Term:
    """(gQ + Q sym(R gR^T - gQ^T Q)) R^-T, where `sym` mirrors the lower triangle."""
    by_upper = f.term(r).op("MatMul", turned(f, by_r))
    m = by_upper - _turned(by_q, f).op("MatMul", q)
    below = _triangle(f, m, -1, upper=False)
    mirrored = _triangle(f, m, 0, upper=False) + _turned(below, f)
    inner = by_q + f.term(q).op("MatMul", mirrored)
    return _by_upper_turned(f, inner, r)


# -- eigenvalues and singular values


def eigen_gradient(
    f: Fragment,
    call: Backward,
    x: Sequence[Value],
    y: Value,
    g: Value,
) -> list[Value]:
    """V (diag(gL) + skew(V^T gV) / (2 E)) V^T, which is symmetric; E[i, j] = L[j] - L[i]."""
    values, vectors = _results(f, call, x[0], 2)
    v = f.term(vectors)
    by_values = call.flow(0)
    by_vectors = call.flow(1)
    parts = []
    if by_values is not None:
        parts.append(v * f.unsqueeze(by_values, -2))
    if by_vectors is not None:
        row, column = _row_and_column(f, values)
        gaps = _without_diagonal(f, row - column) * 2.0
        parts.append(v.op("MatMul", _skew(f, v, by_vectors) / gaps))
    total = _total(parts)
    return [total.op("MatMul", _turned(v, f)).value]


def svd_gradient(
    f: Fragment,
    call: Backward,
    x: Sequence[Value],
    y: Value,
    g: Value,
) -> list[Value]:
    """U (diag(gS) + skew(U^T gU) / E S + S skew(V^T gV) / E) V^T, and (1 - U U^T) gU / S V^T.

    E[i, j] = S[j]^2 - S[i]^2. The second one is 0 for square matrices.
    """
    left, values, right = _results(f, call, x[0], 3)
    rows, columns = extents(x[0])[-2:]
    by_left, by_values, by_right = (call.flow(i) for i in range(3))
    if by_left is not None and extents(left)[-1] > columns:
        call.refuse(
            f"U has more than {columns} columns, and the others are not determined",
            "take the reduced factors: full=0, or full_matrices=False of torch.linalg.svd",
        )
    u = f.term(_part(f, left, -1, 0, columns))
    row, column = _row_and_column(f, values)
    gaps = _without_diagonal(f, (row - column) * (row + column))
    parts = []
    if by_values is not None:
        parts.append(u * f.unsqueeze(by_values, -2))
    if by_left is not None:
        inner = _skew(f, u, by_left) / gaps
        parts.append(u.op("MatMul", inner * row))
        if rows > columns:
            along = _turned(u, f).op("MatMul", by_left)
            beside = f.term(by_left) - u.op("MatMul", along)
            parts.append(beside / row)
    if by_right is not None:
        v = f.term(turned(f, right))
        by_columns = turned(f, by_right)
        inner = _skew(f, v, by_columns) / gaps
        parts.append(u.op("MatMul", column * inner))
    return [_total(parts).op("MatMul", right).value]


def _row_and_column(
    f: Fragment,
    values: Value,
) -> tuple[Term, Term]:
    return f.term(f.unsqueeze(values, -2)), f.term(f.unsqueeze(values, -1))


def _without_diagonal(
    f: Fragment,
    divisors: Term,
) -> Term:
    """With infinity on the diagonal, so that quotients are 0 there, and their derivatives."""
    size = extents(divisors.value)[-1]
    infinite = np.where(np.eye(size, dtype=bool), np.inf, 0)
    return divisors + f.constant(infinite, divisors.value.dtype)


def _skew(
    f: Fragment,
    vectors: Term,
    g: Value,
) -> Term:
    """M - M^T, where M is the transposed vectors times their gradient."""
    m = _turned(vectors, f).op("MatMul", g)
    return m - _turned(m, f)


def _total(parts: Sequence[Term]) -> Term:
    total, *others = parts
    for part in others:
        total = total + part
    return total
