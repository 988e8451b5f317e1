"""Gradients of tensors whose elements are put where a mask holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewright.frontends.torch.aten.own.table import decomposes


@decomposes("aten.masked_scatter_backward.default")
def _taken(gradient: Any, mask: Any, sizes: Sequence[Any]) -> Any:
    """Each element of the source gets the gradient of its place; those that are not put get none.

    The elements go to the places of the mask in order. Others go to one more element, which is
    dropped.
    """
    import torch

    count = math.prod(sizes)
    held = mask.expand(gradient.shape).reshape(-1)
    order = held.cumsum(0) - 1
    places = torch.where(held, order, count)
    found = gradient.new_zeros(count + 1)
    found = found.scatter(0, places, gradient.reshape(-1))
    return found[:count].reshape(sizes)
