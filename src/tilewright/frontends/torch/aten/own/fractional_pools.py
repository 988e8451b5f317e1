"""Fractional max pooling and its gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewright.frontends.torch.aten.own.table import decomposes


@decomposes("aten.fractional_max_pool2d.default", "aten.fractional_max_pool3d.default")
def _fractional_pool(
    x: Any, kernel: Sequence[int], size: Sequence[int], samples: Any
) -> Any:
    """The greatest of each window, and its place in the plane (the channel's elements in order).

    samples: batch x channels x axes, in [0, 1). They place the windows: those of planes by the
    last axis first, as PyTorch does; those of volumes by the first.
    """
    import torch

    count = len(kernel)
    if x.dim() == count + 1:
        parts = _fractional_pool(x[None], kernel, size, samples)
        return tuple(p[0] for p in parts)
    given = list(samples.unbind(-1))
    if count == 2:
        given.reverse()
    extents = x.shape[2:]
    places: Any = 0
    for axis, (n, k, out, drawn) in enumerate(
        zip(extents, kernel, size, given, strict=True)
    ):
        starts = _starts(n - k, out, drawn)
        along = starts[..., None] + torch.arange(k)  # batch x channels x out x k
        shape = [1] * (2 * count)
        shape[axis] = out
        shape[count + axis] = k
        along = along.reshape([*along.shape[:2], *shape])
        places = places * n + along
    inner = math.prod(kernel)
    places = places.reshape([*x.shape[:2], math.prod(size), inner])
    windows = x.flatten(2).gather(2, places.flatten(2))
    windows = windows.reshape(places.shape)
    best, which = windows.max(-1)
    found = places.gather(-1, which[..., None]).squeeze(-1)
    ends = [*x.shape[:2], *size]
    return best.reshape(ends), found.reshape(ends)


def _starts(last: Any, count: int, drawn: Any) -> Any:
    """Where windows start along an axis: batch x channels x count; the last one at `last`."""
    import torch

    steps = torch.arange(count, dtype=drawn.dtype)
    stride = drawn.new_full((), last) / max(count - 1, 1)  # rounded as PyTorch does
    drawn = drawn[..., None]
    ahead = (drawn * stride).long()
    starts = ((steps + drawn) * stride).long() - ahead
    return torch.where(steps == count - 1, last, starts)


@decomposes(
    "aten.fractional_max_pool2d_backward.default",
    "aten.fractional_max_pool3d_backward.default",
)
def _fractional_gradient(
    gradient: Any, x: Any, kernel: Sequence[int], size: Sequence[int], places: Any
) -> Any:
    """Each element of the gradient goes to the place that the maximum came from."""
    lead = x.dim() - len(kernel)
    flat = x.new_zeros(x.flatten(lead).shape)
    found = flat.scatter_add(lead, places.flatten(lead), gradient.flatten(lead))
    return found.reshape(x.shape)
