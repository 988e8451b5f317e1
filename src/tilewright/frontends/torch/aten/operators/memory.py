"""Elements by their positions in memory, and parts that are no slices replaced."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.frontends.torch.aten.operators.parts import overwritten
from tilewright.frontends.torch.aten.operators.shapes import transposed
from tilewright.frontends.torch.aten.rules import AtenCall, rule
from tilewright.graph.nodes import Value


@rule("aten.as_strided")
def _strided(c: AtenCall) -> Value:
    flat, _ = _in_memory(c)
    shape, steps = list(c.result.shape), list(c["stride"])
    order = sorted(range(len(shape)), key=lambda a: (-steps[a], a))
    if not c["storage_offset"] and math.prod(shape) == c.of("self").numel():
        if _is_dense(shape, steps, order):
            found = c.reshape(flat, [shape[a] for a in order])
            return transposed(c, found, [order.index(a) for a in range(len(shape))])
    return c.op("Gather", flat, c.build.constant(_places(c, shape)), axis=0)


@rule("aten.as_strided_scatter", "prims.as_strided_scatter")
def _strided_part(c: AtenCall) -> Value:
    """Where elements of the part share memory, the last one counts."""
    name = "self" if c.has("self") else "input"
    flat, order = _in_memory(c, name)
    places = _places(c, list(c["size"]), name)
    src = c.reshape(c.tensor("src", c.dtype), [-1])
    new = overwritten(c, flat, places.reshape(-1), c.result.numel(), src)
    shape = list(c.result.shape)
    found = c.reshape(new, [shape[a] for a in order])
    return transposed(c, found, [order.index(a) for a in range(len(shape))])


@rule("aten.diagonal_scatter")
def _diagonal_part(c: AtenCall) -> Value:
    shape = c.fixed()
    if shape is None:
        raise c.refuse("its extents are known only at run time")
    numbers = np.arange(math.prod(shape)).reshape(shape)
    places = numbers.diagonal(int(c["offset"]), int(c["dim1"]), int(c["dim2"]))
    flat = c.reshape(c.tensor(), [-1])
    src = c.reshape(c.tensor("src", c.dtype), [-1])
    new = overwritten(c, flat, places.reshape(-1), numbers.size, src)
    return c.reshape(new, shape)


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
    return c.reshape(transposed(c, c.tensor(name), order), [-1]), order


def _places(
    c: AtenCall, shape: Sequence[int], name: str = "self"
) -> np.ndarray[Any, np.dtype[np.int64]]:
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
