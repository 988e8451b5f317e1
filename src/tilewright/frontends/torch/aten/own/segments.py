"""Reductions of rows by segments, and their gradients."""

from __future__ import annotations

import math
from typing import Any, Final

from tilewright.frontends.torch.aten.own.table import decomposes

# What a segment without rows has, if nothing else is given: the neutral number, and no mean.
_EMPTY: Final = {
    "sum": 0,
    "mean": math.nan,
    "prod": 1,
    "max": -math.inf,
    "min": math.inf,
}
_SCATTERED: Final = {
    "sum": "sum",
    "mean": "sum",
    "prod": "prod",
    "max": "amax",
    "min": "amin",
}


@decomposes("aten.segment_reduce.default")
def _reduced(
    data: Any,
    reduce: str,
    *,
    lengths: Any = None,
    indices: Any = None,
    offsets: Any = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Any:
    """One row for each segment, of the rows of `data` that it has and the initial number."""
    if indices is not None or axis != 0:
        return NotImplemented
    lengths = _lengths(lengths, offsets)
    count = lengths.shape[0]
    start = _EMPTY[reduce] if initial is None else initial
    first = 0 if reduce == "mean" and initial is None else start
    # The last row is of rows that are in no segment.
    rows = data.new_full((count + 1, *data.shape[1:]), first)
    places = _places(data, lengths)
    how = _SCATTERED[reduce]
    whole = rows.scatter_reduce(0, places, data, how)
    found = whole[:count]
    if reduce != "mean":
        return found
    counts = _beside(lengths, data)
    if initial is None:
        return found / counts
    return found / counts.clamp(min=1)


@decomposes("aten._segment_reduce_backward.default")
def _gradient(
    gradient: Any,
    output: Any,
    data: Any,
    reduce: str,
    *,
    lengths: Any = None,
    offsets: Any = None,
    axis: int = 0,
    initial: float | None = None,
) -> Any:
    """Of each row; greatest or least ones that are equal share it, as do those that are no
    numbers. Others have 0."""
    import torch

    if axis != 0 or reduce == "prod":
        return NotImplemented
    lengths = _lengths(lengths, offsets)
    places = _places(data, lengths)

    def of_segment(x: Any) -> Any:
        none = x.new_zeros(1, *x.shape[1:])
        return torch.cat([x, none]).gather(0, places)

    given = of_segment(gradient)
    if reduce == "sum":
        return given
    if reduce == "mean":
        counts = _beside(lengths, data).expand(gradient.shape)
        return given / of_segment(counts).clamp(min=1)
    reached = (data == of_segment(output)) | data.isnan()
    chosen = reached.to(data.dtype)
    none = torch.zeros_like(output)
    last = none.new_zeros(1, *none.shape[1:])
    counts = torch.cat([none, last]).scatter_add(0, places, chosen)
    shares = counts.gather(0, places).clamp(min=1)
    # PyTorch's kernel leaves negative gradients whole.
    found = torch.where(given > 0, given / shares, given)
    return found * chosen


def _lengths(lengths: Any, offsets: Any) -> Any:
    """How many rows each segment has."""
    return offsets.diff() if lengths is None else lengths


def _beside(lengths: Any, data: Any) -> Any:
    """The number of rows of each segment, to be broadcast with its row."""
    shape = [-1] + [1] * (data.dim() - 1)
    return lengths.reshape(shape).to(data.dtype)


def _places(data: Any, lengths: Any) -> Any:
    """For each element of `data` the segment that its row is in."""
    import torch

    ends = lengths.cumsum(0)
    rows = torch.arange(data.shape[0], dtype=ends.dtype)
    segment = torch.searchsorted(ends, rows, right=True)
    shape = [-1] + [1] * (data.dim() - 1)
    return segment.reshape(shape).expand(data.shape)
