"""How the dimensions of an image or output are in memory, by the strides that are promised.

Without promises dimension 0 is innermost and the others follow. `dim(0).set_stride(3)` and
`dim(2).set_stride(1)` say that three channels are neighbors; arrays have their axes in the order of
memory then, as NumPy has such images: `[y, x, c]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.base.errors import InputError, UnsupportedError
from tilewright.expr.nodes import Extent

Array = np.ndarray[Any, Any]


def promised(stride: Any, where: str) -> int:
    """A stride that may be promised. Raises InputError for another."""
    if not isinstance(stride, int) or stride < 1:
        raise InputError(
            f"the stride {stride!r}", where=where, hint="elements, 1 or more"
        )
    return stride


def order(rank: int, strides: Mapping[int, int]) -> tuple[int, ...]:
    """The axes of NumPy in the order of memory, outermost first.

    rank: the number of dimensions. strides: of those that have a promised one; others are outside.
    """
    inner = sorted(strides, key=lambda d: strides[d])
    outer = [d for d in range(rank) if d not in strides]
    return tuple(rank - 1 - d for d in reversed(inner + outer))


def check(strides: Mapping[int, int], extents: Sequence[Extent], where: str) -> None:
    """Raise UnsupportedError unless the promised strides describe a dense array.

    extents: by axis, in NumPy's order.
    """
    rank = len(extents)
    dense: Extent = 1
    for axis in reversed(order(rank, strides)):
        dim = rank - 1 - axis
        if dim not in strides:
            return
        if strides[dim] != dense:
            raise UnsupportedError(
                f"a stride of {strides[dim]} along dimension {dim}, where {dense!r} is dense",
                where=where,
                hint="declare the strides of all dimensions inside it, without "
                "gaps; copy an array that has gaps",
            )
        dense = dense * extents[axis]


def in_memory(array: Array, strides: Mapping[int, int]) -> Array:
    """An array of all dimensions, x last, with its axes in the order of memory."""
    return array.transpose(order(array.ndim, strides))


def in_dimensions(array: Array, strides: Mapping[int, int]) -> Array:
    """An array in the order of memory with its axes as dimensions, x last."""
    return array.transpose(np.argsort(order(array.ndim, strides)))
