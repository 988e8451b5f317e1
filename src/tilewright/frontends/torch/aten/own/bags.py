"""Bags of embeddings and their gradients."""

from __future__ import annotations

from typing import Any, Final

from tilewright.frontends.torch.aten.own.table import decomposes

_MEAN: Final = 1
_BAGS: Final = (0, _MEAN)  # modes of bags of embeddings that have a derivative here


@decomposes("aten._embedding_bag.default")
def _embedding_bag(weight: Any, indices: Any, offsets: Any, *how: Any) -> Any:
    """Sums and means of rows of a table, which are trained; their gradient needs nothing else.

    Maxima, sparse gradients, and gradients by frequency keep PyTorch's kernels.
    """
    import torch

    # mode, sparse, per_sample_weights, include_last_offset and padding_idx follow.
    by_frequency, mode, sparse = [*how, *(False, 0, False)[len(how) :]][:3]
    if mode not in _BAGS or sparse or by_frequency:
        return NotImplemented
    found = torch.ops.aten._embedding_bag_forward_only(weight, indices, offsets, *how)
    nothing = indices.new_zeros(0)
    return found[0], nothing, nothing, nothing


@decomposes("aten._embedding_bag_backward.default")
def _embedding_bag_gradient(
    gradient: Any,
    indices: Any,
    offsets: Any,
    bags: Any,
    sizes: Any,
    places: Any,
    rows: Any,
    by_frequency: bool,
    mode: int,
    sparse: bool,
    factors: Any,
    padding: int = -1,
) -> Any:
    """Each row of the table gets the gradients of the bags it is in; `padding` is in none."""
    if mode not in _BAGS or sparse or by_frequency:
        return NotImplemented
    bag = _bag_of_each(indices, offsets)
    share = (indices != padding).to(gradient.dtype)
    if mode == _MEAN:
        held = gradient.new_zeros(gradient.shape[0]).index_add(0, bag, share)
        share = share / held.clamp(min=1)[bag]
    if factors is not None:
        share = share * factors
    parts = gradient[bag] * share[:, None]
    table = gradient.new_zeros(rows, gradient.shape[1])
    return table.index_add(0, indices, parts)


@decomposes("aten._embedding_bag_per_sample_weights_backward.default")
def _factors_of_bags(
    gradient: Any,
    weight: Any,
    indices: Any,
    offsets: Any,
    bags: Any,
    mode: int,
    padding: int = -1,
) -> Any:
    """Of the factors of rows in sums: the product of each row and its bag's gradient."""
    bag = _bag_of_each(indices, offsets)
    products = gradient[bag] * weight[indices]
    counted = indices != padding
    return products.sum(-1) * counted


def _bag_of_each(indices: Any, offsets: Any) -> Any:
    """For each index the last bag that starts at or before it."""
    import torch

    counted = torch.arange(indices.shape[0], dtype=offsets.dtype)
    return torch.searchsorted(offsets, counted, right=True) - 1
