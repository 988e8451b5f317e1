"""Reshaping, reordering, slicing and concatenation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.dtypes import bool_, int64
from tilewright.frontends.torch.aten.rules import AtenCall, positive, rule
from tilewright.graph.nodes import Value
from tilewright.graph.ops.dtype_numbers import number_of

_END = (1 << 63) - 1


@rule(
    "aten.clone",
    "aten.contiguous",
    "aten.alias",
    "aten.lift",
    "aten.lift_fresh_copy",
    "aten.lift_fresh",
    "aten.positive",
    "aten.resolve_conj",
    "aten.dropout",
    "aten.feature_dropout",
    "aten.alpha_dropout",
)
def _same(c: AtenCall) -> Value:
    """The identity; dropout in training is not supported."""
    if c["train"]:
        raise c.refuse("it drops elements at random, in training mode")
    return c.tensor("self" if c.has("self") else "input")


@rule("aten.detach", "aten.detach_")
def _detached(c: AtenCall) -> Value:
    return c.build.detached(c.tensor())


@rule(
    "aten.to",
    "aten._to_copy",
    "aten.type_as",
    "aten.float",
    "aten._to_cpu",
    "prims.convert_element_type",
)
def _converted(c: AtenCall) -> Value:
    return c.tensor("self" if c.has("self") else "a", c.dtype)


@rule("aten.view.dtype", "prims.view_of_dtype")
def _reinterpreted(c: AtenCall) -> Value:
    x = c.tensor("self" if c.has("self") else "a")
    if x.dtype is None or x.dtype.bits != c.dtype.bits or bool_ in (x.dtype, c.dtype):
        raise c.refuse("it reads the bytes of a tensor as a type of another size")
    return c.op("BitCast", x, to=number_of(c.dtype.name))


@rule(
    "aten.view.default",
    "aten.reshape",
    "aten._unsafe_view",
    "aten.flatten",
    "aten.unflatten",
    "aten.view_as",
    "aten.reshape_as",
    "aten._reshape_alias",
    "aten._reshape_copy",
)
def _reshaped(c: AtenCall) -> Value:
    fixed = c.fixed()
    if fixed is not None:
        return c.reshape(c.tensor(), fixed)
    size = next((c[n] for n in ("size", "shape") if c.has(n)), None)
    if size is not None:
        return c.reshape(c.tensor(), size)
    return c.reshape(c.tensor(), _found(c))


def _found(c: AtenCall) -> list[int]:
    """The shape of the result with -1 for at most one unknown extent."""
    shape = [n if type(n) is int else -1 for n in c.result.shape]
    if shape.count(-1) > 1:
        raise c.refuse("several extents of its result are known only at run time")
    return shape


@rule("aten.unsqueeze")
def _unsqueezed(c: AtenCall) -> Value:
    axis = positive(int(c["dim"]), c.rank() + 1)
    return c.unsqueeze(c.tensor(), axis)


@rule("aten.squeeze")
def _squeezed(c: AtenCall) -> Value:
    """Remove only axes of one element; without axes, none."""
    if c["dim"] == []:
        named = []
    else:
        named = c.axes()
    axes = [a for a in named if c.rank() and c.extent(a) == 1]
    if axes:
        return c.squeeze(c.tensor(), *axes)
    return c.tensor()


@rule("aten.permute")
def _permuted(c: AtenCall) -> Value:
    order = [positive(int(d), c.rank()) for d in c["dims"]]
    return transposed(c, c.tensor(), order)


@rule("aten.transpose.int", "aten.swapaxes", "aten.t", "aten.numpy_T", "aten.mT")
def _swapped(c: AtenCall) -> Value:
    order = list(range(c.rank()))
    if c.has("dim0") or c.has("axis0"):
        if c.has("dim0"):
            names = ("dim0", "dim1")
        else:
            names = ("axis0", "axis1")
        a, b = (c.axis(n) for n in names)
    elif c.rank() < 2:
        return c.tensor()
    elif ".numpy_T" in c.name:
        return transposed(c, c.tensor(), order[::-1])
    else:
        a = c.rank() - 2
        b = c.rank() - 1
    if order:
        order[a], order[b] = order[b], order[a]
    return transposed(c, c.tensor(), order)


@rule("aten.movedim.int", "aten.movedim.intlist")
def _moved(c: AtenCall) -> Value:
    source = c.axes("source")
    target = c.axes("destination")
    rest = [a for a in range(c.rank()) if a not in source]
    order = dict(zip(target, source, strict=True))
    free = iter(rest)
    return transposed(
        c, c.tensor(), [order[n] if n in order else next(free) for n in range(c.rank())]
    )


def transposed(c: AtenCall, x: Value, order: Sequence[int]) -> Value:
    """The axes in another order."""
    if list(order) == list(range(len(order))):
        return x
    return c.op("Transpose", x, perm=list(order))


# -- repetition


@rule("aten.expand", "aten.expand_as", "aten.broadcast_to")
def _expanded(c: AtenCall) -> Value:
    size = c["size"]
    if size is None or c.fixed() is not None:
        size = c.fixed() or _found(c)
    # -1 keeps an extent; in ONNX's Expand, 1 does.
    return c.op("Expand", c.tensor(), c.sizes([1 if n == -1 else n for n in size]))


@rule("aten.repeat", "aten.tile")
def _repeated(c: AtenCall) -> Value:
    counts = list(c["repeats"] if c.has("repeats") else c["dims"])
    x = c.tensor()
    rank = c.rank()
    if len(counts) > rank:
        axes = c.ints(*range(len(counts) - rank))
        x = c.op("Unsqueeze", x, axes)
    counts = [1] * (rank - len(counts)) + counts
    if counts:
        repeats = c.sizes(counts)
        return c.op("Tile", x, repeats)
    return x


@rule("aten.repeat_interleave.self_int")
def _interleaved(c: AtenCall) -> Value:
    """Repeat each element: add an axis, expand it, and merge it with the one before.

    Without a dimension the elements are flattened first.
    """
    x = c.tensor()
    axis = 0
    rank = 1
    if c.has("dim"):
        axis = c.axis()
        rank = c.rank()
    else:
        x = c.reshape(x, [-1])
    axes = c.ints(axis + 1)
    wide = c.op("Unsqueeze", x, axes)
    sizes: list[Any] = [1] * (rank + 1)
    sizes[axis + 1] = c["repeats"]
    wide = c.op("Expand", wide, c.sizes(sizes))
    shape: list[Any] = [0] * rank  # unchanged
    shape[axis] = -1
    if c.fixed() is not None:
        return c.reshape(wide, c.fixed() or [])
    if axis < rank - 1:
        raise c.refuse("the extents after its dimension are known only at run time")
    return c.op("Reshape", wide, c.ints(*shape))


# -- images


@rule("aten.pixel_shuffle")
def _pixel_shuffled(c: AtenCall) -> Value:
    if c.rank() != 4:
        raise c.refuse(f"its input has {c.rank()} axes, not 4")
    size = int(c["upscale_factor"])
    return c.op("DepthToSpace", c.tensor(), blocksize=size, mode="CRD")


@rule("aten.pixel_unshuffle")
def _pixel_unshuffled(c: AtenCall) -> Value:
    shape = list(c.of("self").shape)
    if len(shape) != 4 or not all(type(n) is int for n in shape):
        raise c.refuse("its input is not an image of known extents")
    n, k, h, w = shape
    r = int(c["downscale_factor"])
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
def _padded(c: AtenCall) -> Value:
    """PyTorch lists pads from the last axis on, begin and end together."""
    mode = _MODES[c["mode"] or "constant"]
    x = c.tensor()
    pads = list(c["pad"])
    axes = [c.rank() - 1 - n for n in range(len(pads) // 2)]
    added = [max(n, 0) if isinstance(n, int) else n for n in pads]
    if mode == "constant":
        value = c.value(c["value"] or 0, c.dtype)
    else:
        value = None
    if added != pads and mode == "constant":
        x = _cropped(c, x, axes, pads)
    sizes = c.sizes([*added[::2], *added[1::2]])
    x = c.op("Pad", x, sizes, value, c.ints(*axes), mode=mode)
    if added != pads and mode != "constant":
        x = _cropped(c, x, axes, pads)  # elements that are cropped off may be repeated
    return x


def _cropped(c: AtenCall, x: Value, axes: Sequence[int], pads: Sequence[Any]) -> Value:
    """Without the elements that negative pads remove."""
    for axis, begin, end in zip(axes, pads[::2], pads[1::2], strict=True):
        if any(isinstance(n, int) and n < 0 for n in (begin, end)):
            cut = c.ints(max(-begin, 0)), c.ints(min(end, 0) or _END)
            x = c.op("Slice", x, *cut, c.ints(axis))
    return x


@rule("aten.tril", "aten.triu")
def _triangle(c: AtenCall) -> Value:
    upper = int(".triu" in c.name)
    return c.op("Trilu", c.tensor(), c.value(c["diagonal"], int64), upper=upper)


@rule("aten.diagonal")
def _diagonal(c: AtenCall) -> Value:
    """The elements of two axes whose indices differ by the offset, as the last axis."""
    axes = [c.axis("dim1"), c.axis("dim2")]
    offset = int(c["offset"])
    extents = [c.extent(a) for a in axes]
    if None in extents:
        raise c.refuse("its extents are known only at run time")
    rest = [a for a in range(c.rank()) if a not in axes]
    x = transposed(c, c.tensor(), [*axes, *rest])
    rows = np.arange(max(-offset, 0), max(-offset, 0) + c.result.shape[-1])
    places = c.build.constant(np.stack([rows, rows + offset], -1).astype(np.int64))
    found = c.op("GatherND", x, places)
    return transposed(c, found, [*range(1, len(rest) + 1), 0])


@rule("aten.unfold")
def _windows(c: AtenCall) -> Value:
    """Sliding windows along an axis, with their elements as the last axis."""
    axis = positive(int(c["dimension"]), c.rank())
    size = int(c["size"])
    step = int(c["step"])
    if not c.rank():
        raise c.refuse("its input has no axes")
    extent = c.extent(axis)
    if extent is None:
        raise c.refuse("the number of windows is known only at run time")
    starts = np.arange(0, extent - size + 1, step)
    places = c.build.constant(starts[:, None] + np.arange(size))
    found = c.op("Gather", c.tensor(), places, axis=axis)
    order = [n for n in range(c.rank() + 1) if n != axis + 1]
    return transposed(c, found, [*order, axis + 1])
