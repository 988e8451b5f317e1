"""Products of Householder's reflections `I - tau v v^T`, as LAPACK stores them.

The columns v are below the diagonal of a matrix, with an implied 1 on it. Their product is
`I - V T V^T` with an upper triangular T (Schreiber, Van Loan, "A storage-efficient WY
representation for products of Householder transformations", 1989).
"""

from __future__ import annotations

from typing import Any

from tilewright.frontends.torch.aten.own.table import decomposes


@decomposes("aten.linalg_householder_product.default")
def _product(stored: Any, taus: Any) -> Any:
    """The first columns of the product, as many as are stored."""
    import torch

    if stored.is_complex():
        return NotImplemented
    rows, columns = stored.shape[-2:]
    unit = torch.eye(rows, columns, dtype=stored.dtype)
    return _applied(stored, taus, unit.expand(stored.shape), transpose=False)


@decomposes("aten.ormqr.default")
def _times(
    stored: Any,
    taus: Any,
    other: Any,
    left: bool = True,
    transpose: bool = False,
) -> Any:
    """A matrix times the product, from either side."""
    if stored.is_complex():
        return NotImplemented
    if left:
        return _applied(stored, taus, other, transpose)
    return _applied(stored, taus, other.mT, not transpose).mT


def _applied(
    stored: Any,
    taus: Any,
    x: Any,
    transpose: bool,
) -> Any:
    """`T = (1 + D S)^-1 D`, of the taus D and the products S of columns with later ones."""
    import torch

    count = taus.shape[-1]
    columns = stored[..., :count]
    unit = torch.eye(columns.shape[-2], count, dtype=stored.dtype)
    v = columns.tril(-1) + unit
    weights = taus[..., None]
    inner = v.mT @ x
    triangle = (v.mT @ v).triu(1) * weights
    if transpose:
        # T^T = D (1 + D S)^-T
        lower = triangle.mT
        inner = torch.linalg.solve_triangular(
            lower, inner, upper=False, unitriangular=True
        )
        inner = weights * inner
    else:
        inner = torch.linalg.solve_triangular(
            triangle, weights * inner, upper=True, unitriangular=True
        )
    return x - v @ inner
