"""Triangular systems by their older name."""

from __future__ import annotations

from typing import Any

from tilewright.frontends.torch.aten.own.table import decomposes


@decomposes("aten.triangular_solve.default")
def _solved(
    right: Any,
    a: Any,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> Any:
    """The solution, and the matrices themselves, as many as there are solutions."""
    import torch

    left = a.mT if transpose else a
    found = torch.linalg.solve_triangular(
        left,
        right,
        upper=upper != transpose,
        unitriangular=unitriangular,
    )
    whole = a.expand(*found.shape[:-2], *a.shape[-2:])
    return found, whole.clone()
