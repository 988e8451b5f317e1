"""Elements by their positions in memory, and parts that are no slices replaced."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.frontends.torch.aten.operators.parts import Places, overwritten
from tilewright.frontends.torch.aten.operators.shapes import transposed
from tilewright.frontends.torch.aten.rules import AtenCall, rule
from tilewright.graph.nodes import Value


@rule("aten.as_strided")
def _strided(c: AtenCall) -> Value:
    flat, _ = _in_memory(c)
    shape = list(c.result.shape)
    steps = list(c["stride"])
    size = c.of("self").numel()
    order = sorted(range(len(shape)), key=lambda a: (-steps[a], a))
    whole = not c["storage_offset"] and math.prod(shape) == size
    if whole and _is_dense(shape, steps, order):
        return _ordered(c, flat, shape, order)
    places = _places(c, shape)
    indices = c.build.constant(places)
    return c.op("Gather", flat, indices, axis=0)


def _ordered(
    c: AtenCall, flat: Value, shape: Sequence[int], order: Sequence[int]
) -> Value:
    """A tensor from its elements in memory, whose axes are in this order there."""
    extents = [shape[a] for a in order]
    found = c.reshape(flat, extents)
    back = [order.index(a) for a in range(len(shape))]
    return transposed(c, found, back)


@rule("aten.as_strided_scatter", "prims.as_strided_scatter")
def _strided_part(c: AtenCall) -> Value:
    """Where elements of the part share memory, the last one counts."""
    name = "self" if c.has("self") else "input"
    flat, order = _in_memory(c, name)
    places = _places(c, list(c["size"]), name)
    new = _replaced(c, flat, places, c.result.numel())
    shape = list(c.result.shape)
    return _ordered(c, new, shape, order)


@rule("aten.diagonal_scatter")
def _diagonal_part(c: AtenCall) -> Value:
    shape = c.fixed()
    if shape is None:
        raise c.refuse("its extents are known only at run time")
    size = math.prod(shape)
    numbers = np.arange(size).reshape(shape)
    given = [int(c[n]) for n in ("offset", "dim1", "dim2")]
    places = numbers.diagonal(*given)
    x = c.tensor()
    flat = c.reshape(x, [-1])
    new = _replaced(c, flat, places, size)
    return c.reshape(new, shape)


def _replaced(c: AtenCall, flat: Value, places: Places, size: int) -> Value:
    """A tensor of one axis with the elements of `src` at these places."""
    src = c.tensor("src", c.dtype)
    elements = c.reshape(src, [-1])
    line = places.reshape(-1)
    return overwritten(c, flat, line, size, elements)


def _in_memory(c: AtenCall, name: str = "self") -> tuple[Value, list[int]]:
    """A tensor's elements in the order of its memory, and its axes from the outermost on.

    Raises UnsupportedError if PyTorch's tensor has gaps, or starts inside of another one.
    """
    held = c.of(name)
    numbers = [*c.result.shape, *held.shape, *held.stride(), *(c["stride"] or ())]
    offset = c["storage_offset"] or 0
    if not all(type(n) is int for n in (*numbers, held.storage_offset(), offset)):
        raise c.refuse("its extents are known only at run time")
    order = sorted(range(c.rank(name)), key=lambda a: (-held.stride()[a], a))
    if held.storage_offset() or not _is_dense(held.shape, held.stride(), order):
        raise c.refuse("its input is a part of another tensor")
    x = c.tensor(name)
    turned = transposed(c, x, order)
    flat = c.reshape(turned, [-1])
    return flat, order


def _places(c: AtenCall, shape: Sequence[int], name: str = "self") -> Places:
    """The positions in memory of a view's elements."""
    places = np.asarray(c["storage_offset"] or 0, np.int64)
    for extent, step in zip(shape, c["stride"], strict=True):
        places = places[..., None] + np.arange(extent) * step
    if places.size and places.max() >= c.of(name).numel():
        raise c.refuse("it reads beyond its input")
    return places


def _is_dense(shape: Sequence[int], steps: Sequence[int], order: Sequence[int]) -> bool:
    """Whether these axes, from the outermost one, fill memory without gaps."""
    size = 1
    for a in reversed(order):
        if shape[a] != 1 and steps[a] != size:
            return False
        size *= shape[a]
    return True
