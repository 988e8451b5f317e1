"""Places of elements that are not zero, as many as are asked for."""

from __future__ import annotations

from typing import Any

from tilewright.frontends.torch.aten.own.table import decomposes


@decomposes("aten.nonzero_static.default")
def _first_places(x: Any, *, size: int, fill_value: int = -1) -> Any:
    """The first `size` ones, as rows of a matrix; rows that are left over have the fill value."""
    import torch

    if not x.dim():
        return torch.empty((size, 0), dtype=torch.int64)
    held = (x != 0).reshape(-1)
    number = held.cumsum(0) - 1
    # Elements that are zero, or too many, go to a place behind the others.
    number = torch.where(held & (number < size), number, size)
    empty = torch.full((size + 1,), -1, dtype=torch.int64)
    places = empty.scatter(0, number, torch.arange(held.shape[0]))[:size]
    rest = places.clamp(min=0)
    columns: list[Any] = []
    for extent in reversed(x.shape):
        columns.insert(0, rest % max(extent, 1))
        rest = rest // max(extent, 1)
    found = torch.stack(columns, 1)
    return torch.where(places[:, None] < 0, fill_value, found)
