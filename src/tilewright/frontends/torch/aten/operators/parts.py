"""Joining tensors, and parts of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright.base.dtypes import int64
from tilewright.frontends.torch.aten.rules import AtenCall, positive, rule
from tilewright.graph.nodes import Value

Places = np.ndarray[Any, np.dtype[np.int64]]
_END = (1 << 63) - 1


@rule("aten.cat", "aten.concat", "aten.concatenate")
def _concatenated(c: AtenCall) -> Value:
    """Empty one-axis tensors may be joined with any others, for old programs."""
    shapes = [n.meta["val"].shape for n in c.given["tensors"]]
    parts = [
        c.cast(v, c.dtype)
        for v, shape in zip(c["tensors"], shapes, strict=True)
        if list(shape) != [0] or len(c.result.shape) == 1
    ]
    if len(parts) == 1:
        return parts[0]
    axis = positive(int(c["dim"]), len(c.result.shape))
    return c.op("Concat", *parts, axis=axis)


@rule("aten.stack")
def _stacked(c: AtenCall) -> Value:
    axis = positive(int(c["dim"]), len(c.result.shape))
    parts = [c.unsqueeze(c.cast(v, c.dtype), axis) for v in c["tensors"]]
    return c.op("Concat", *parts, axis=axis)


@rule(
    "aten.split",
    "aten.split_with_sizes",
    "aten.chunk",
    "aten.tensor_split",
    "aten.unbind",
    "aten.split_copy",
    "aten.split_with_sizes_copy",
)
def _split(c: AtenCall) -> list[Value]:
    parts = c.node.meta["val"]
    axis = c.axis()
    if ".unbind" in c.name:
        sizes: list[Any] = [1] * len(parts)
    else:
        sizes = [p.shape[axis] for p in parts]
    if not all(type(n) is int for n in sizes):
        return _open_parts(c, axis, len(parts))
    found = [c.tensor()]
    if len(sizes) > 1:
        found = c.build.ops(
            "Split", c.tensor(), c.ints(*sizes), count=len(sizes), axis=axis
        )
    if ".unbind" not in c.name:
        return found
    return [c.squeeze(v, axis) for v in found]


def _open_parts(c: AtenCall, axis: int, count: int) -> list[Value]:
    """Parts of sizes known only at run time, one after the other; a last one may be shorter."""
    if c.has("split_sizes"):
        sizes = c["split_sizes"]
    else:
        sizes = c["split_size"]
    if sizes is None:  # of a `chunk` or `tensor_split`, which PyTorch decomposes
        raise c.refuse("the sizes of its parts are known only at run time")
    found = []
    end: Any = 0
    for size in sizes if isinstance(sizes, list) else [sizes] * count:
        start, end = end, _plus(c, end, size)
        bounds = [c.sizes([n]) for n in (start, end)]
        found.append(c.op("Slice", c.tensor(), *bounds, c.ints(axis)))
    return found


@rule("aten.select")
def _selected(c: AtenCall) -> Value:
    index = c.value(c["index"], int64)
    return c.op("Gather", c.tensor(), index, axis=c.axis())


@rule("aten.slice", "aten.narrow")
def _sliced(c: AtenCall) -> Value:
    axis = c.axis()
    if c.has("start"):
        start = c["start"]
    else:
        start = 0
    if c.has("length"):
        size = c.extent(axis)
        if isinstance(start, int) and start < 0 and size:
            start = start + size
        end = _plus(c, start, c["length"])
    else:
        if c.has("end"):
            end = c["end"]
        else:
            end = _END
    if c.has("step"):
        step = c["step"]
    else:
        step = 1
    if (start, step) == (0, 1) and isinstance(end, int):
        extent = c.extent(axis)
        if end == _END or (extent is not None and end >= extent):
            return c.tensor()
    bounds = [c.sizes([n]) for n in (start, end)]
    return c.op("Slice", c.tensor(), *bounds, c.ints(axis), c.ints(step))


def _plus(c: AtenCall, a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return c.op("Add", c.value(a, int64), c.value(b, int64))


@rule("aten.flip")
def _flipped(c: AtenCall) -> Value:
    if not c["dims"] or not c.rank():
        return c.tensor()
    axes = c.axes("dims")
    starts = c.ints(*[-1] * len(axes))
    ends = c.ints(*[-_END] * len(axes))
    return c.op(
        "Slice", c.tensor(), starts, ends, c.ints(*axes), c.ints(*[-1] * len(axes))
    )


@rule("aten.roll")
def _rolled(c: AtenCall) -> Value:
    """Rotate along each axis; without axes, along all elements in order."""
    x = c.tensor()
    shifts = [int(n) for n in c["shifts"]]
    if not c["dims"]:
        shape = c.fixed()
        if shape is None:
            raise c.refuse("its number of elements is known only at run time")
        flat = _turned(c, c.reshape(x, [-1]), 0, shifts[0], math.prod(shape))
        return c.reshape(flat, shape)
    for axis, shift in zip(c.axes("dims"), shifts, strict=True):
        extent = c.extent(axis)
        x = _turned(c, x, axis, shift, extent)
    return x


def _turned(
    c: AtenCall,
    x: Value,
    axis: int,
    shift: int,
    extent: int | None,
) -> Value:
    """Shifts are modulo the extent."""
    if extent is not None:
        shift = shift % extent if extent else 0
    if not shift:
        return x
    start = c.ints(-shift)
    if extent is None:
        size = c.op("Max", c.op("Shape", x, start=axis, end=axis + 1), c.ints(1))
        start = c.op("Sub", size, c.op("Mod", c.ints(shift), size))
    bounds = (start, c.ints(_END)), (c.ints(0), start)
    parts = [c.op("Slice", x, a, b, c.ints(axis)) for a, b in bounds]
    return c.op("Concat", *parts, axis=axis)


@rule("aten.slice_scatter", "aten.select_scatter")
def _placed(c: AtenCall) -> Value:
    """`self` with a part replaced: the elements before it, the new part, the elements after it."""
    axis = c.axis()
    extent = c.extent(c.axis())
    src = c.cast(c["src"], c.dtype)
    if c.has("index"):
        start = c["index"]
        end = None
        step = 1
        axes = c.ints(axis)
        src = c.op("Unsqueeze", src, axes)
    else:
        start = c["start"] or 0
        end = c["end"]
        step = c["step"]
    if extent is None or not isinstance(start, int):
        raise c.refuse("the part it replaces is known only at run time")
    start = min(max(start + extent if start < 0 else start, 0), extent)
    if c.has("index"):
        end = start + 1
    elif end is None:
        end = extent
    end = min(max(end + extent if end < 0 else end, start), extent)
    if step != 1:
        return overwritten(
            c, c.tensor(), np.arange(start, end, step), extent, src, axis
        )
    front = c.op("Slice", c.tensor(), c.ints(0), c.ints(start), c.ints(axis))
    back = c.op("Slice", c.tensor(), c.ints(end), c.ints(_END), c.ints(axis))
    parts = [
        (front, start > 0),
        (src, end > start),
        (back, end < extent),
    ]
    kept = [v for v, there in parts if there]
    if len(kept) == 1:
        return kept[0]
    return c.op("Concat", *kept, axis=axis)


def overwritten(
    c: AtenCall, x: Value, places: Places, extent: int, src: Value, axis: int = 0
) -> Value:
    """`x` with the elements at these places of an axis replaced by those of `src`, in order."""
    sources = np.full(extent, -1)
    sources[places] = np.arange(places.size)
    if not places.size:
        return x
    kept = (sources < 0).reshape(-1, *[1] * (len(x.shape or ()) - 1 - axis))
    new = c.op("Gather", src, c.build.constant(np.maximum(sources, 0)), axis=axis)
    return c.op("Where", c.build.constant(kept), x, new)


@rule("aten.copy")
def _copied(c: AtenCall) -> Value:
    src = c.cast(c["src"], c.dtype)
    shape = c.fixed()
    if shape is None:
        sizes = c.op("Shape", c.tensor())
    else:
        sizes = c.ints(*shape)
    return c.op("Expand", src, sizes)
