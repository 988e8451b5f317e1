"""Gradients of tensors with repeated borders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.frontends.torch.aten.own.table import decomposes


@decomposes(
    "aten.replication_pad1d_backward.default",
    "aten.replication_pad2d_backward.default",
    "aten.replication_pad3d_backward.default",
)
def _replicated(gradient: Any, x: Any, padding: Sequence[int]) -> Any:
    """Each element gets the gradients of its copies; a border that is cut off has none."""
    import torch

    for axis in range(-1, -len(padding) // 2 - 1, -1):
        before, after = padding[-2 * axis - 2 : -2 * axis]
        count = x.shape[axis]
        places = torch.arange(-before, count + after).clamp(0, count - 1)
        shape = list(gradient.shape)
        shape[axis] = count
        gradient = gradient.new_zeros(shape).index_add(axis, places, gradient)
    return gradient
