"""Bags of embeddings and their gradients."""

from __future__ import annotations

from typing import Any

from tilewright.frontends.torch.aten.own.table import decomposes

_SUM, _MEAN, _MAX = range(3)


@decomposes("aten._embedding_bag.default")
def _embedding_bag(weight: Any, indices: Any, offsets: Any, *how: Any) -> Any:
    """Rows of a table by bags, which are trained. Gradients of sums and means need nothing else.

    Sparse gradients, and gradients by frequency, keep PyTorch's kernels.
    """
    import torch

    default = (False, _SUM, False, None, False, -1)
    given = [*how, *default[len(how) :]]
    by_frequency, mode, sparse, _, with_end, padding = given
    if sparse or by_frequency:
        return NotImplemented
    whole = torch.ops.aten._embedding_bag_forward_only(weight, indices, offsets, *how)
    found = whole[0]
    nothing = indices.new_zeros(0)
    if mode != _MAX:
        return found, nothing, nothing, nothing
    bag = _bag_of_each(indices, offsets[:-1] if with_end else offsets)
    counted = indices != padding
    sizes = indices.new_zeros(found.shape[0]).index_add(0, bag, counted.long())
    rows = _rows_of_maxima(weight, indices, bag, counted, found)
    return found, nothing, sizes, rows


@decomposes("aten.embedding_renorm.default")
def _shortened(weight: Any, indices: Any, most: float, order: float) -> Any:
    """Rows that the indices name are scaled to a norm of at most `most`; NaN ones are kept."""
    import torch

    places = indices.reshape(-1).long()
    rows = weight[places]
    norms = torch.linalg.vector_norm(rows, order, 1, keepdim=True)
    shares = most / (norms + 1e-7)
    kept = torch.where(norms > most, rows * shares, rows)
    return weight.index_put((places,), kept)  # a row named twice is written alike


def _rows_of_maxima(
    weight: Any,
    indices: Any,
    bag: Any,
    counted: Any,
    maxima: Any,
) -> Any:
    """For each maximum the row of the table that it is of: the first one of the bag's."""
    import torch

    count = indices.shape[0]
    if count == 0:
        return torch.zeros_like(maxima, dtype=indices.dtype)
    same = weight[indices] == maxima[bag]
    there = same & counted[:, None]
    numbers = torch.arange(count)[:, None]
    places = torch.where(there, numbers, count - 1)
    last = torch.full_like(maxima, count - 1, dtype=torch.int64)
    beside = bag[:, None].expand(places.shape)
    first = last.scatter_reduce(0, beside, places, "amin")
    return indices[first]


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
    if sparse or by_frequency:
        return NotImplemented
    table = gradient.new_zeros(rows, gradient.shape[1])
    if mode == _MAX:
        given = gradient * (sizes > 0)[:, None]
        return table.scatter_add(0, places, given)
    bag = _bag_of_each(indices, offsets)
    share = (indices != padding).to(gradient.dtype)
    if mode == _MEAN:
        held = gradient.new_zeros(gradient.shape[0]).index_add(0, bag, share)
        share = share / held.clamp(min=1)[bag]
    if factors is not None:
        share = share * factors
    parts = gradient[bag] * share[:, None]
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
