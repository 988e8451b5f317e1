"""The geometry of convolutions that rules read and write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.graph.nodes import Operation, Value
from tilewright.graph.ops.conv import geometry
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import Array, OpCall
from tilewright.graph.ops.windows import Windows


def windows_of(op: Operation) -> Windows:
    """The geometry of a convolution, with `auto_pad` as pads."""
    call = OpCall(op)
    return geometry(call, call.shape(0), call.shape(1))


def group_of(op: Operation) -> int:
    """Its number of groups."""
    return int(op.attr("group", 1))


def attributes_of(shape: Windows, group: int = 1) -> dict[str, Any]:
    """The attributes of a convolution of this geometry."""
    return {
        "strides": list(shape.strides),
        "dilations": list(shape.dilations),
        "pads": [*shape.begin, *shape.end],
        "group": group,
    }


def zeros_like(like: Value, shape: Sequence[int]) -> Array:
    """Zeros of the type of a value."""
    assert like.dtype is not None
    return np.zeros(shape, like.dtype.numpy)


def enlarged(
    f: Fragment,
    weight: Value,
    grown: Sequence[tuple[int, int]],
) -> Value:
    """A weight padded with zeros."""
    if all(pair == (0, 0) for pair in grown):
        return weight
    before = [0, 0, *(b for b, _ in grown)]
    behind = [0, 0, *(e for _, e in grown)]
    return f.op("Pad", weight, f.ints(*before, *behind))
