"""Reductions along an index."""

from __future__ import annotations

from typing import Any

from tilewright.frontends.torch.aten.own.table import decomposes


@decomposes("aten.index_reduce.default")
def _index_reduce(
    x: Any,
    dim: int,
    index: Any,
    source: Any,
    reduce: str,
    *,
    include_self: bool = True,
) -> Any:
    """Each row of the source goes to the row of x that the index names."""
    shape = [1] * source.dim()
    if shape:
        shape[dim] = -1
    places = index.reshape(shape).expand(source.shape).long()
    return x.scatter_reduce(dim, places, source, reduce, include_self=include_self)
