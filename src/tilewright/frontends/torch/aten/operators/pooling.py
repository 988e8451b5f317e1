"""Pooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from tilewright.frontends.torch.aten.rules import AtenCall, rule
from tilewright.graph.nodes import Value

_Array: TypeAlias = np.ndarray[Any, Any]


@rule(
    "aten.max_pool1d",
    "aten.max_pool2d",
    "aten.max_pool3d",
    "aten.max_pool2d_with_indices",
    "aten.max_pool3d_with_indices",
)
def _max_pool(c: AtenCall) -> Value | Sequence[Value | None]:
    axes = _axes(c)
    how = _windows(c, axes) | {"dilations": c.spread("dilation", axes)}
    x, alone = _batched(c, axes)
    if not c.uses(1):
        found = _unbatched(c, c.op("MaxPool", x, **how), alone)
        if "with_indices" in c.name:
            return [found, None]
        return found
    return [_unbatched(c, v, alone) for v in _max_and_place(c, x, axes, how)]


def _max_and_place(
    c: AtenCall, x: Value, axes: int, how: dict[str, Any]
) -> list[Value]:
    """The maximum of each window and its position in the image."""
    extents = _known_extents(c, axes)
    counts = [int(n) for n in c.result.shape[-axes:]]
    lines = [_line(n, extents[n], counts[n], how) for n in range(axes)]
    return _gathered(c, x, extents, lines)


def _known_extents(c: AtenCall, axes: int) -> list[int]:
    extents = [c.extent(c.rank() - axes + n) for n in range(axes)]
    known = [n for n in extents if n is not None]
    if len(known) < axes:
        raise c.refuse("the extents of its image are known only at run time")
    return known


def _gathered(
    c: AtenCall, x: Value, extents: list[int], lines: list[_Array]
) -> list[Value]:
    """The maxima and their positions by gathering the windows.

    lines: for each axis, windows by positions.
    """
    table = np.zeros((1, 1), np.int64)
    for extent, line in zip(extents, lines, strict=True):
        table = table[:, None, :, None] * extent + line[None, :, None, :]
        table = table.reshape(table.shape[0] * len(line), -1)
    places = c.build.constant(table)
    # Not -1, which says nothing where there are no images.
    rows = c.op("Reshape", x, c.ints(0, 0, math.prod(extents)))
    windows = c.op("Gather", rows, places, axis=2)
    first = c.op("ArgMax", windows, axis=3, keepdims=0)
    starts = c.build.constant(np.arange(len(table)) * table.shape[1])
    flat = c.build.constant(table.reshape(-1))
    indices = c.op("Add", first, starts)
    place = c.op("Gather", flat, indices, axis=0)
    largest = c.op("ReduceMax", windows, c.ints(3), keepdims=0)
    shape = c.ints(0, 0, *map(len, lines))
    return [c.op("Reshape", v, shape) for v in (largest, place)]


def _line(n: int, extent: int, count: int, how: dict[str, Any]) -> _Array:
    """Windows by positions along axis `n`; padding repeats an element of the window."""
    starts = np.arange(count)[:, None] * how["strides"][n] - how["pads"][n]
    line = starts + np.arange(how["kernel_shape"][n]) * how["dilations"][n]
    inside = (line >= 0) & (line < extent)
    first = line[np.arange(len(line)), inside.argmax(1)]
    found: _Array = np.where(inside, line, first[:, None])
    return found


def _unequal(extent: int, count: int) -> _Array:
    """Windows by positions if their sizes differ; short ones repeat their last element."""
    numbers = np.arange(count)
    starts = numbers * extent // count
    ends = -(-(numbers + 1) * extent // count)
    longest = int((ends - starts).max(initial=0))
    line = starts[:, None] + np.arange(longest)
    last = ends[:, None] - 1
    found: _Array = np.minimum(line, last)
    return found


@rule("aten.avg_pool1d", "aten.avg_pool2d", "aten.avg_pool3d")
def _avg_pool(c: AtenCall) -> Value:
    axes = _axes(c)
    if not c.dtype.is_float:
        raise c.refuse(f"it averages {c.dtype.name}")
    how = _windows(c, axes) | {"count_include_pad": int(c["count_include_pad"])}
    divisor = c["divisor_override"]
    if divisor:
        how["count_include_pad"] = 1
    if divisor and how["ceil_mode"]:
        how |= _whole_windows(c, axes, how)
    x, alone = _batched(c, axes)
    found = c.op("AveragePool", x, **how)
    if divisor:
        size = math.prod(how["kernel_shape"])
        share = c.number(size / divisor)
        found = c.op("Mul", found, share)
    return _unbatched(c, found, alone)


def _whole_windows(c: AtenCall, axes: int, how: dict[str, Any]) -> dict[str, Any]:
    """Padding at the ends to which windows that are rounded up reach, so that all count alike."""
    ends = []
    counts = list(c.result.shape[-axes:])
    for n, extent in enumerate(_known_extents(c, axes)):
        begin = how["pads"][n]
        last = (int(counts[n]) - 1) * how["strides"][n] - begin
        end = last + how["kernel_shape"][n] - extent
        ends.append(max(end, begin))
    return {"pads": how["pads"][:axes] + ends, "ceil_mode": 0}


@rule(
    "aten.adaptive_avg_pool1d",
    "aten.adaptive_avg_pool2d",
    "aten.adaptive_avg_pool3d",
    "aten._adaptive_avg_pool2d",
    "aten._adaptive_avg_pool3d",
)
def _adaptive_avg(c: AtenCall) -> Value:
    return _adaptive(c, "AveragePool", "GlobalAveragePool")


@rule(
    "aten.adaptive_max_pool1d", "aten.adaptive_max_pool2d", "aten.adaptive_max_pool3d"
)
def _adaptive_max(c: AtenCall) -> list[Value | None]:
    axes = _axes(c)
    sizes = c.spread("output_size", axes)
    extents = [c.extent(c.rank() - axes + n) for n in range(axes)]
    pairs = list(zip(extents, sizes, strict=True))
    equal = all(s == 1 or (n is not None and s and n % s == 0) for n, s in pairs)
    if equal and not c.uses(1):
        return [_adaptive(c, "MaxPool", "GlobalMaxPool"), None]
    known = _known_extents(c, axes)
    lines = [_unequal(*both) for both in zip(known, sizes, strict=True)]
    x, alone = _batched(c, axes)
    return [_unbatched(c, v, alone) for v in _gathered(c, x, known, lines)]


def _adaptive(c: AtenCall, op_type: str, whole: str) -> Value:
    """Windows of equal size if the extents divide; means of unequal ones by matrices."""
    axes = _axes(c)
    if c.has("output_size"):
        sizes = c.spread("output_size", axes)
    else:
        sizes = []
    x, alone = _batched(c, axes)
    if all(n == 1 for n in sizes):
        return _unbatched(c, c.op(whole, x), alone)
    known = _known_extents(c, axes)
    if all(n % s == 0 for n, s in zip(known, sizes, strict=True)):
        step = [n // s for n, s in zip(known, sizes, strict=True)]
        found = c.op(op_type, x, kernel_shape=step, strides=step)
        return _unbatched(c, found, alone)
    for n, (extent, size) in enumerate(zip(known, sizes, strict=True)):
        x = _averaged(c, x, 2 + n, 2 + axes, extent, size)
    return _unbatched(c, x, alone)


def _averaged(
    c: AtenCall,
    x: Value,
    axis: int,
    rank: int,
    extent: int,
    size: int,
) -> Value:
    """Means of windows along one axis, as a product with the matrix of their weights."""
    shares = np.zeros((extent, size), c.dtype.numpy)
    for n in range(size):
        start = n * extent // size
        end = -(-(n + 1) * extent // size)
        shares[start:end, n] = 1 / (end - start)
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    if axis == rank - 1:
        last = x
    else:
        last = c.op("Transpose", x, perm=order)
    found = c.op("MatMul", last, c.build.constant(shares))
    if axis == rank - 1:
        return found
    return c.op("Transpose", found, perm=order)


def _axes(c: AtenCall) -> int:
    """The number of spatial axes: the digit in the operator's name."""
    name = c.name.split(".")[1]
    return int(name[name.index("pool") + len("pool")])


def _windows(c: AtenCall, axes: int) -> dict[str, Any]:
    kernel = c.spread("kernel_size", axes)
    return {
        "kernel_shape": kernel,
        "strides": c.spread("stride", axes) if c["stride"] else kernel,
        "pads": c.spread("padding", axes) * 2,
        "ceil_mode": int(c["ceil_mode"]),
    }


def _batched(c: AtenCall, axes: int) -> tuple[Value, bool]:
    alone = c.rank() == axes + 1
    return (c.unsqueeze(c.tensor(), 0) if alone else c.tensor()), alone


def _unbatched(c: AtenCall, x: Value, alone: bool) -> Value:
    if alone:
        axes = c.ints(0)
        return c.op("Squeeze", x, axes)
    return x
