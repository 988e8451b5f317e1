"""Other shapes and orders of the same elements, parts of tensors and their concatenation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.dtypes import int64
from tilewright.frontends.torch.aten.rules import Call, positive, rule
from tilewright.graph.nodes import Value

_END = (1 << 63) - 1


@rule(
    "aten.clone", "aten.contiguous", "aten.alias", "aten.detach", "aten.detach_", "aten.lift",
    "aten.lift_fresh_copy", "aten.lift_fresh", "aten.positive", "aten.resolve_conj",
    "aten.dropout", "aten.feature_dropout", "aten.alpha_dropout",
)  # fmt: skip
def _same(c: Call) -> Value:
    """The same numbers; what drops elements is refused in training."""
    if c["train"]:
        raise c.refuse("it drops elements at random, in training mode")
    return c.tensor("self" if c.has("self") else "input")


@rule(
    "aten.to", "aten._to_copy", "aten.type_as", "aten.float", "aten._to_cpu",
    "prims.convert_element_type",
)  # fmt: skip
def _converted(c: Call) -> Value:
    return c.tensor("self" if c.has("self") else "a", c.dtype)


@rule("aten.view.dtype")
def _reinterpreted(c: Call) -> Value:
    raise c.refuse("it reads the bytes of a tensor as another type")


@rule(
    "aten.view.default", "aten.reshape", "aten._unsafe_view", "aten.flatten", "aten.unflatten",
    "aten.view_as", "aten.reshape_as", "aten._reshape_alias", "aten._reshape_copy",
)  # fmt: skip
def _reshaped(c: Call) -> Value:
    fixed = c.fixed()
    if fixed is not None:
        return c.reshape(c.tensor(), fixed)
    size = next((c[n] for n in ("size", "shape") if c.has(n)), None)
    if size is not None:
        return c.reshape(c.tensor(), size)
    return c.reshape(c.tensor(), _found(c))


def _found(c: Call) -> list[int]:
    """The shape of the result where at most one extent is not known: -1."""
    shape = [n if type(n) is int else -1 for n in c.result.shape]
    if shape.count(-1) > 1:
        raise c.refuse("more than one extent of its result is known at a call only")
    return shape


@rule("aten.unsqueeze")
def _unsqueezed(c: Call) -> Value:
    axis = positive(int(c["dim"]), c.rank() + 1)
    return c.op("Unsqueeze", c.tensor(), c.ints(axis))


@rule("aten.squeeze")
def _squeezed(c: Call) -> Value:
    """Only axes of one element go; of no axes, none."""
    named = [] if c["dim"] == [] else c.axes()
    axes = [a for a in named if c.rank() and c.extent(a) == 1]
    return c.op("Squeeze", c.tensor(), c.ints(*axes)) if axes else c.tensor()


@rule("aten.permute")
def _permuted(c: Call) -> Value:
    order = [positive(int(d), c.rank()) for d in c["dims"]]
    return _transposed(c, c.tensor(), order)


@rule("aten.transpose.int", "aten.swapaxes", "aten.t", "aten.numpy_T", "aten.mT")
def _swapped(c: Call) -> Value:
    order = list(range(c.rank()))
    if c.has("dim0") or c.has("axis0"):
        names = ("dim0", "dim1") if c.has("dim0") else ("axis0", "axis1")
        a, b = (c.axis(n) for n in names)
    elif c.rank() < 2:
        return c.tensor()
    elif ".numpy_T" in c.name:
        return _transposed(c, c.tensor(), order[::-1])
    else:
        a, b = c.rank() - 2, c.rank() - 1
    if order:
        order[a], order[b] = order[b], order[a]
    return _transposed(c, c.tensor(), order)


@rule("aten.movedim.int", "aten.movedim.intlist")
def _moved(c: Call) -> Value:
    source, target = c.axes("source"), c.axes("destination")
    rest = [a for a in range(c.rank()) if a not in source]
    order = dict(zip(target, source, strict=True))
    free = iter(rest)
    return _transposed(
        c,
        c.tensor(),
        [order[n] if n in order else next(free) for n in range(c.rank())],
    )


def _transposed(c: Call, x: Value, order: Sequence[int]) -> Value:
    if list(order) == list(range(len(order))):
        return x
    return c.op("Transpose", x, perm=list(order))


# -- repetition


@rule("aten.expand", "aten.expand_as", "aten.broadcast_to")
def _expanded(c: Call) -> Value:
    size = c["size"]
    if size is None or c.fixed() is not None:
        size = c.fixed() or _found(c)
    # -1 keeps an extent, which for Expand is to be broadcast from one.
    return c.op("Expand", c.tensor(), c.sizes([1 if n == -1 else n for n in size]))


@rule("aten.repeat", "aten.tile")
def _repeated(c: Call) -> Value:
    counts = list(c["repeats"] if c.has("repeats") else c["dims"])
    x, rank = c.tensor(), c.rank()
    if len(counts) > rank:
        x = c.op("Unsqueeze", x, c.ints(*range(len(counts) - rank)))
    counts = [1] * (rank - len(counts)) + counts
    return c.op("Tile", x, c.sizes(counts)) if counts else x


@rule("aten.repeat_interleave.self_int")
def _interleaved(c: Call) -> Value:
    """Each element several times: an axis more, stretched, and joined with the one in front.

    Without a dimension the elements are taken in a row.
    """
    x, axis, rank = c.tensor(), 0, 1
    if c.has("dim"):
        axis, rank = c.axis(), c.rank()
    else:
        x = c.reshape(x, [-1])
    wide = c.op("Unsqueeze", x, c.ints(axis + 1))
    sizes: list[Any] = [1] * (rank + 1)
    sizes[axis + 1] = c["repeats"]
    wide = c.op("Expand", wide, c.sizes(sizes))
    shape: list[Any] = [0] * rank  # kept
    shape[axis] = -1
    if c.fixed() is not None:
        return c.reshape(wide, c.fixed() or [])
    if axis < rank - 1:
        raise c.refuse("a call only knows the extents behind its dimension")
    return c.op("Reshape", wide, c.ints(*shape))


# -- joining and parting


@rule("aten.cat", "aten.concat", "aten.concatenate")
def _concatenated(c: Call) -> Value:
    """Tensors of one axis without elements go with anything, for old programs."""
    shapes = [n.meta["val"].shape for n in c.given["tensors"]]
    parts = [
        c.cast(v, c.dtype)
        for v, shape in zip(c["tensors"], shapes, strict=True)
        if list(shape) != [0] or len(c.result.shape) == 1
    ]
    if len(parts) == 1:
        return parts[0]
    return c.op("Concat", *parts, axis=positive(int(c["dim"]), len(c.result.shape)))


@rule("aten.stack")
def _stacked(c: Call) -> Value:
    axis = positive(int(c["dim"]), len(c.result.shape))
    parts = [c.op("Unsqueeze", c.cast(v, c.dtype), c.ints(axis)) for v in c["tensors"]]
    return c.op("Concat", *parts, axis=axis)


@rule(
    "aten.split", "aten.split_with_sizes", "aten.chunk", "aten.tensor_split", "aten.unbind",
    "aten.split_copy", "aten.split_with_sizes_copy",
)  # fmt: skip
def _split(c: Call) -> list[Value]:
    parts = c.node.meta["val"]
    axis = c.axis()
    if ".unbind" in c.name:
        sizes: list[Any] = [1] * len(parts)
    else:
        sizes = [p.shape[axis] for p in parts]
    if not all(type(n) is int for n in sizes):
        raise c.refuse("the sizes of its parts are known at a call only")
    found = [c.tensor()]
    if len(sizes) > 1:
        found = c.build.ops(
            "Split", c.tensor(), c.ints(*sizes), count=len(sizes), axis=axis
        )
    if ".unbind" not in c.name:
        return found
    return [c.op("Squeeze", v, c.ints(axis)) for v in found]


@rule("aten.select")
def _selected(c: Call) -> Value:
    index = c.value(c["index"], int64)
    return c.op("Gather", c.tensor(), index, axis=c.axis())


@rule("aten.slice", "aten.narrow")
def _sliced(c: Call) -> Value:
    axis = c.axis()
    start = c["start"] if c.has("start") else 0
    if c.has("length"):
        size = c.extent(axis)
        start = start + size if isinstance(start, int) and start < 0 and size else start
        end = _plus(c, start, c["length"])
    else:
        end = c["end"] if c.has("end") else _END
    step = c["step"] if c.has("step") else 1
    if (start, step) == (0, 1) and isinstance(end, int):
        extent = c.extent(axis)
        if end == _END or (extent is not None and end >= extent):
            return c.tensor()
    bounds = [c.sizes([n]) for n in (start, end)]
    return c.op("Slice", c.tensor(), *bounds, c.ints(axis), c.ints(step))


def _plus(c: Call, a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return c.op("Add", c.value(a, int64), c.value(b, int64))


@rule("aten.flip")
def _flipped(c: Call) -> Value:
    if not c["dims"]:
        return c.tensor()
    axes = c.axes("dims")
    starts, ends = c.ints(*[-1] * len(axes)), c.ints(*[-_END] * len(axes))
    return c.op(
        "Slice", c.tensor(), starts, ends, c.ints(*axes), c.ints(*[-1] * len(axes))
    )


@rule("aten.roll")
def _rolled(c: Call) -> Value:
    """Along each axis the end goes to the front; without axes along all elements in a row."""
    x, shifts = c.tensor(), [int(n) for n in c["shifts"]]
    if not c["dims"]:
        shape = c.fixed()
        if shape is None:
            raise c.refuse("a call only knows how many elements it has")
        flat = _turned(c, c.reshape(x, [-1]), 0, shifts[0], math.prod(shape))
        return c.reshape(flat, shape)
    for axis, shift in zip(c.axes("dims"), shifts, strict=True):
        x = _turned(c, x, axis, shift, c.extent(axis))
    return x


def _turned(c: Call, x: Value, axis: int, shift: int, extent: int | None) -> Value:
    """Once around is nothing: a shift may be more than the extent."""
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
def _placed(c: Call) -> Value:
    """`self` with a part of it replaced: what is in front of it, the new part, what is behind."""
    axis, extent = c.axis(), c.extent(c.axis())
    src = c.cast(c["src"], c.dtype)
    if c.has("index"):
        start, end, step = c["index"], None, 1
        src = c.op("Unsqueeze", src, c.ints(axis))
    else:
        start, end, step = c["start"] or 0, c["end"], c["step"]
    if extent is None or not isinstance(start, int) or step != 1:
        raise c.refuse("a call only knows which part it replaces, or it has steps")
    start = min(max(start + extent if start < 0 else start, 0), extent)
    end = start + 1 if c.has("index") else extent if end is None else end
    end = min(max(end + extent if end < 0 else end, start), extent)
    front = c.op("Slice", c.tensor(), c.ints(0), c.ints(start), c.ints(axis))
    back = c.op("Slice", c.tensor(), c.ints(end), c.ints(_END), c.ints(axis))
    parts = [(front, start > 0), (src, end > start), (back, end < extent)]
    kept = [v for v, there in parts if there]
    return kept[0] if len(kept) == 1 else c.op("Concat", *kept, axis=axis)


@rule("aten.copy")
def _copied(c: Call) -> Value:
    src = c.cast(c["src"], c.dtype)
    shape = c.fixed()
    sizes = c.op("Shape", c.tensor()) if shape is None else c.ints(*shape)
    return c.op("Expand", src, sizes)


# -- images


@rule("aten.pixel_shuffle")
def _pixel_shuffled(c: Call) -> Value:
    if c.rank() != 4:
        raise c.refuse(f"its input has {c.rank()} axes, not 4")
    size = int(c["upscale_factor"])
    return c.op("DepthToSpace", c.tensor(), blocksize=size, mode="CRD")


@rule("aten.pixel_unshuffle")
def _pixel_unshuffled(c: Call) -> Value:
    shape = list(c.of("self").shape)
    if len(shape) != 4 or not all(type(n) is int for n in shape):
        raise c.refuse("its input is no image of known extents")
    (n, k, h, w), r = shape, int(c["downscale_factor"])
    x = c.reshape(c.tensor(), [n, k, h // r, r, w // r, r])
    x = c.op("Transpose", x, perm=[0, 1, 3, 5, 2, 4])
    return c.reshape(x, [n, k * r * r, h // r, w // r])


_MODES = {
    "constant": "constant",
    "reflect": "reflect",
    "replicate": "edge",
    "circular": "wrap",
}


@rule("aten.pad", "aten.constant_pad_nd")
def _padded(c: Call) -> Value:
    """PyTorch counts pads from the last axis, begin and end together."""
    mode = _MODES[c["mode"] or "constant"]
    x, pads = c.tensor(), list(c["pad"])
    axes = [c.rank() - 1 - n for n in range(len(pads) // 2)]
    for axis, begin, end in zip(axes, pads[::2], pads[1::2], strict=True):
        if any(isinstance(n, int) and n < 0 for n in (begin, end)):
            cut = c.ints(max(-begin, 0)), c.ints(min(end, 0) or _END)
            x = c.op("Slice", x, *cut, c.ints(axis))
    pads = [max(n, 0) if isinstance(n, int) else n for n in pads]
    value = c.value(c["value"] or 0, c.dtype) if mode == "constant" else None
    sizes = c.sizes([*pads[::2], *pads[1::2]])
    return c.op("Pad", x, sizes, value, c.ints(*axes), mode=mode)


@rule("aten.tril", "aten.triu")
def _triangle(c: Call) -> Value:
    upper = int(".triu" in c.name)
    return c.op("Trilu", c.tensor(), c.value(c["diagonal"], int64), upper=upper)


@rule("aten.diagonal")
def _diagonal(c: Call) -> Value:
    """The elements of two axes whose places differ by the offset, as the last axis."""
    axes, offset = [c.axis("dim1"), c.axis("dim2")], int(c["offset"])
    extents = [c.extent(a) for a in axes]
    if None in extents:
        raise c.refuse("a call only knows its extents")
    rest = [a for a in range(c.rank()) if a not in axes]
    x = _transposed(c, c.tensor(), [*axes, *rest])
    rows = np.arange(max(-offset, 0), max(-offset, 0) + c.result.shape[-1])
    places = c.build.constant(np.stack([rows, rows + offset], -1).astype(np.int64))
    found = c.op("GatherND", x, places)
    return _transposed(c, found, [*range(1, len(rest) + 1), 0])


@rule("aten.unfold")
def _windows(c: Call) -> Value:
    """Windows of an axis, their elements as the last axis."""
    axis, size, step = (
        positive(int(c["dimension"]), c.rank()),
        int(c["size"]),
        int(c["step"]),
    )
    if not c.rank():
        raise c.refuse("its input has no axes")
    extent = c.extent(axis)
    if extent is None:
        raise c.refuse("a call only knows how many windows there are")
    starts = np.arange(0, extent - size + 1, step)
    places = c.build.constant(starts[:, None] + np.arange(size))
    found = c.op("Gather", c.tensor(), places, axis=axis)
    order = [n for n in range(c.rank() + 1) if n != axis + 1]
    return _transposed(c, found, [*order, axis + 1])
