"""Random numbers that depend on a tensor, from uniform and exponential ones."""

from __future__ import annotations

import math
from typing import Any

from tilewright.frontends.torch.aten.own.table import decomposes


@decomposes("aten.rrelu_with_noise_functional.default")
def _rrelu(
    x: Any,
    noise: Any,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> Any:
    """Slopes are drawn between bounds where x is not positive; the second result has them."""
    import torch

    if not training:
        return torch.nn.functional.leaky_relu(x, (lower + upper) / 2), noise.clone()
    drawn = torch.rand_like(x) * (upper - lower) + lower
    slope = torch.where(x <= 0, drawn, 1)
    return x * slope, slope


@decomposes("aten.multinomial.default")
def _multinomial(
    weights: Any,
    count: int,
    replacement: bool = False,
    generator: Any = None,
) -> Any:
    """Categories of each row, as often as drawn, by weights: PyTorch's own numbers.

    Without replacement, the greatest of the weights over exponential numbers (Efraimidis,
    Spirakis, "Weighted random sampling with a reservoir", 2006).
    """
    import torch

    if generator is not None:
        return NotImplemented
    fair = (weights >= 0) & (weights < math.inf)
    torch.ops.aten._assert_async.msg(
        fair.all(),
        "probability tensor contains either `inf`, `nan` or element < 0",
    )
    sums = weights.sum(-1)
    torch.ops.aten._assert_async.msg(
        (sums > 0).all(), "invalid multinomial distribution (sum of probabilities <= 0)"
    )
    if replacement and count != 1:
        return _drawn_again(weights, count)
    ranks = weights / torch.ops.aten.exponential(weights)
    if count == 1:
        return ranks.argmax(-1, keepdim=True)
    return ranks.topk(count).indices


def _drawn_again(weights: Any, count: int) -> Any:
    """Where uniform numbers lie among the sums of the weights before and with each category."""
    import torch

    wide = weights.float() if weights.dtype.itemsize < 4 else weights
    ends = wide.cumsum(-1)
    ends = (ends / ends[..., -1:]).double()
    shape = (*weights.shape[:-1], count)
    drawn = torch.rand(shape, dtype=torch.float64)
    found = torch.searchsorted(ends, drawn)
    return found.clamp(max=weights.shape[-1] - 1)
