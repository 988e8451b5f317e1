"""Histograms, some with ranges that depend on the elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.frontends.torch.aten.own.table import decomposes


@decomposes("aten.histc.default")
def _counts(x: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    """The counts in equal parts of the elements' range, of any shape; x: float32 or float64.

    Of a given range, there is a rule.
    """
    import torch

    if min != max:
        return NotImplemented
    flat = x.flatten()
    low, high = _range(flat, 1.0, "torch.histc", (min, max))
    place = ((flat - low) * bins / (high - low)).floor()
    place = torch.where(place < bins, place, bins - 1)  # the last part has its end
    return _added(place.long(), torch.ones_like(flat), bins)


@decomposes("aten.histogram.bin_ct")
def _equal_parts(
    x: Any,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Any = None,
    density: bool = False,
) -> tuple[Any, Any]:
    """The sum of weights in each of equal parts, and their ends: bins, and bins + 1 numbers."""
    import torch

    if range is None:
        low, high = _range(x.flatten(), 0.5, "torch.histogram", (0.0, 1.0))
    else:
        ends = list(range)
        if ends[0] == ends[1]:
            ends = [ends[0] - 0.5, ends[1] + 0.5]
        low, high = (x.new_full((), end) for end in ends)
    number = torch.arange(bins + 1, dtype=x.dtype)
    step = (high - low) / bins
    edges = torch.where(
        number < (bins + 1) // 2, low + step * number, high - step * (bins - number)
    )
    found: tuple[Any, Any] = _between(x, edges, weight=weight, density=density)
    return found


@decomposes("aten.histogram.bins_tensor")
def _between(
    x: Any, bins: Any, *, weight: Any = None, density: bool = False
) -> tuple[Any, Any]:
    """The sum of weights between each of the ascending `bins` and the next; the last part has its
    end. NaN and elements outside of all are in none."""
    import torch

    flat = x.flatten()
    count = bins.shape[0] - 1
    place = torch.searchsorted(bins, flat, right=True) - 1
    place = place.clamp(max=count - 1)
    inside = (flat >= bins[0]) & (flat <= bins[-1])
    added = torch.ones_like(flat) if weight is None else weight.flatten()
    found = _added(torch.where(inside, place, count), added, count)
    if density:
        found = found / found.sum() / (bins[1:] - bins[:-1])
    return found, bins.clone()


def _range(
    x: Any, beside: float, name: str, empty: tuple[float, float]
) -> tuple[Any, Any]:
    """The least and the largest element of a vector; if they are equal, `beside` farther out."""
    import torch

    if x.shape[0] == 0:
        low, high = (x.new_full((), end) for end in empty)
    else:
        low, high = x.amin(), x.amax()
        torch.ops.aten._assert_async.msg(
            low.isfinite() & high.isfinite(), f"{name}: the range is not finite"
        )
    apart = torch.where(low == high, beside, 0.0).to(x.dtype)
    return low - apart, high + apart


def _added(place: Any, weight: Any, count: int) -> Any:
    """The sums of weights by place; those at `count` are dropped."""
    sums = weight.new_zeros(count + 1).index_add(0, place, weight)
    return sums[:count]
