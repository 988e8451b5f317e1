"""Gradients of distances between the rows of two matrices."""

from __future__ import annotations

import math
from typing import Any

from tilewright.frontends.torch.aten.own.table import decomposes


@decomposes("aten._cdist_backward.default")
def _between(
    gradient: Any,
    a: Any,
    b: Any,
    p: float,
    distances: Any,
) -> Any:
    """Of a, by the gradients of all distances to rows of b.

    Each is 0 where the distance is, also where it has no derivative.
    """
    difference = a[..., :, None, :] - b[..., None, :, :]
    slopes = _slopes(difference, p, distances[..., None])
    parts = gradient[..., None] * slopes
    return parts.sum(-2)


@decomposes("aten._pdist_backward.default")
def _among(
    gradient: Any,
    x: Any,
    p: float,
    distances: Any,
) -> Any:
    """Of x, by the gradients of the distances between two of its rows, in the order of pairs."""
    import torch

    count = x.shape[0]
    first, second = torch.triu_indices(count, count, 1)
    difference = x[first] - x[second]
    parts = gradient[:, None] * _slopes(difference, p, distances[:, None])
    found = torch.zeros_like(x).index_add(0, first, parts)
    return found.index_add(0, second, -parts)


def _slopes(difference: Any, p: float, distance: Any) -> Any:
    """The derivatives of the p-norms of vectors of differences by their entries."""
    import torch

    sizes = difference.abs()
    signs = difference.sign()
    if p == 0:
        return torch.zeros_like(difference)
    if p == 1:
        return signs
    if p == math.inf:
        return signs * (sizes == distance)
    safe = torch.where(distance == 0, 1, distance)
    if p == 2:
        found = difference / safe
    else:
        powers = sizes ** (p - 1)
        found = signs * powers / safe ** (p - 1)
    return torch.where((distance == 0) | (sizes == 0), 0, found)
