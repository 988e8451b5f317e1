"""Normalized weights and their gradients."""

from __future__ import annotations

from typing import Any

from tilewright.frontends.torch.aten.own.table import decomposes


@decomposes("aten._weight_norm_interface.default")
def _weight_norm(v: Any, g: Any, dim: int = 0) -> tuple[Any, Any]:
    """`g * v / norms`, and the norms, of `v` over all axes but `dim`; those of short floats wide.

    PyTorch 2.13's decomposition takes one norm of a whole vector, where each element has its own.
    """
    import torch

    short = v.dtype in (torch.float16, torch.bfloat16)
    wide = torch.float32 if short else v.dtype
    rows = v.to(wide)
    factors = g.to(wide)
    others = [a for a in range(v.dim()) if a != dim]
    if others:
        norms = torch.linalg.vector_norm(rows, 2, others, keepdim=True)
    else:
        norms = rows.abs()
    scale = factors / norms
    found = rows * scale
    return found.to(v.dtype), norms


@decomposes("aten._weight_norm_interface_backward.default")
def _weight_norm_gradient(
    gradient: Any, v: Any, g: Any, norms: Any, dim: int
) -> tuple[Any, Any]:
    """Of `g * v / norms`, with the norms of `v` over all axes but `dim`."""
    others = [a for a in range(v.dim()) if a != dim]
    # Wide, as the norms of short floats are.
    wide = norms.dtype
    given = gradient.to(wide)
    rows = v.to(wide)
    factors = g.to(wide)
    along = given * rows
    if others:  # a sum over no axes would be one over all of them
        along = along.sum(others, keepdim=True)
    along = along / norms
    parallel = rows * (along / norms)
    across = given - parallel
    scale = factors / norms
    found = scale * across
    return found.to(v.dtype), along.to(g.dtype)
