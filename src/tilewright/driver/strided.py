"""Packing that only moves elements: copies a strided view of the constant, without native code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.expr.affine import Affine, affine
from tilewright.expr.nodes import Buffer, Expr, Load, Var
from tilewright.loops.nodes import SIZE, For, Kernel, Store

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True)
class StridedCopy:
    """A copy whose element r is element `first + sum(r * strides)` of the constant.

    extents: of the result, in row-major order.
    """

    first: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def symbol(self) -> str:
        """A name that identifies the copy."""
        return f"view {self.first} {self.extents} {self.strides}"

    def run(self, constant: Bytes, result: Bytes, itemsize: int) -> None:
        """Write the result, and zeros after it up to its length.

        Raises ValueError for a view that leaves the constant.
        """
        dtype = np.dtype(f"u{itemsize}" if itemsize <= 8 else f"c{itemsize}")
        strides = [n * itemsize for n in self.strides]
        at = self.first * itemsize
        view: Any = np.ndarray(self.extents, dtype, constant.data, at, strides)
        result[: view.nbytes].view(dtype).reshape(self.extents)[...] = view
        result[view.nbytes :] = 0


def bytes_of(array: np.ndarray[Any, Any]) -> Bytes:
    """The memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8)


def strided_copy(kernel: Kernel) -> StridedCopy | None:
    """The strided copy that a kernel is, if it only copies its input to its output.

    requires, else None, for loops of constant extents around a single store of a single load:
        both have the same dtype, and their offsets are linear in the loops' variables
        the offsets written are 0, 1, .. to the end of the output, each once
        the offsets read are within the input
    """
    loops: dict[Var, int] = {}
    body = kernel.body
    while isinstance(body, For):
        if body.trips is None or body.kind == SIZE:
            return None
        loops[body.var] = body.trips
        body = body.body
    if not isinstance(body, Store) or not isinstance(body.value, Load):
        return None
    load = body.value
    ends = [load.buffer, body.buffer]
    if [*kernel.inputs, *kernel.outputs] != ends or not all(b.static for b in ends):
        return None
    if load.buffer.dtype is not body.buffer.dtype:
        return None
    to, source = _place(body.buffer, body.index), _place(load.buffer, load.index)
    if {a for form in (to, source) for a, _ in form.terms} - loops.keys() or to.const:
        return None
    extents: list[int] = []
    strides: list[int] = []
    size = 1
    for var in sorted(loops, key=to.coefficient):
        if loops[var] == 1:
            continue
        if to.coefficient(var) != size:
            return None
        size *= loops[var]
        extents.insert(0, loops[var])
        strides.insert(0, source.coefficient(var))
    reach = [(n - 1) * stride for n, stride in zip(extents, strides, strict=True)]
    low = source.const + sum(min(n, 0) for n in reach)
    high = source.const + sum(max(n, 0) for n in reach)
    if size != body.buffer.size or low < 0 or high >= load.buffer.size:
        return None
    return StridedCopy(source.const, tuple(extents), tuple(strides))


def _place(buffer: Buffer, index: tuple[Expr, ...]) -> Affine:
    """The row-major offset of an element."""
    total = Affine((), 0)
    for part, stride in zip(index, buffer.strides, strict=True):
        total += affine(part).scaled(stride)
    return total
