"""The sum of products of three tensors, of `nn.Bilinear`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.frontends.torch.aten.own.table import decomposes


@decomposes("aten._trilinear.default")
def _trilinear(
    a: Any,
    b: Any,
    c: Any,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
) -> Any:
    """The sum, over some axes, of products of three tensors, each without the axes `expand`.

    As two products of matrices: of `nn.Bilinear`, no tensor has all of the axes.
    """
    import torch

    axes = range(a.dim() + len(expand1))
    operands: list[Any] = []
    for tensor, missing in ((a, expand1), (b, expand2), (c, expand3)):
        present = [n for n in axes if n not in missing]
        operands += [tensor, present]
    left = [n for n in axes if n not in sumdim]
    return torch.einsum(*operands, left)
