"""AffineGrid: the positions at which the elements of a result sample an affinely mapped image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.compute.build import cast, map_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr, const
from tilewright.graph.ops.broadcasting import wide, wide_dtype, widened
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register

Buffers = Sequence[Buffer]


def _type(call: OpCall) -> Sequence[Type]:
    theta = call.shape(0)
    size = call.ints(1) or []
    rank = len(size) - 2
    if rank not in (2, 3) or theta != (size[0], rank, rank + 1):
        raise call.error(f"a map of shape {list(theta)} does not fit the size {size}")
    return call.result((size[0], *size[2:], rank))


def _places(call: OpCall, extent: int) -> tuple[float, float]:
    """The first position along an axis that spans -1 to 1, and the step to the next one.

    With aligned corners, a single element is in the middle, as in PyTorch
    (ONNX's text divides by zero, its reference has -1, ONNX Runtime 1).
    """
    if not call.attr("align_corners", 0):
        return 1 / max(extent, 1) - 1, 2 / max(extent, 1)
    if extent > 1:
        return (-1.0, 2 / (extent - 1))
    return (0.0, 0.0)


def _grid(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    theta = inputs[0]
    out = outputs[0]
    work = wide_dtype(theta.dtype)
    extents = out.shape[1:-1]
    rank = len(extents)

    def place(i: Any, extent: int) -> Expr:
        first, step = _places(call, extent)
        return cast(i, work) * const(step, work) + const(first, work)

    def value(n: Any, *rest: Any) -> Expr:
        *at, k = rest
        found = wide(theta[n, k, rank])
        for column in range(rank):  # x, then y, then z
            axis = rank - 1 - column
            factor = wide(theta[n, k, column])
            found = found + factor * place(at[axis], extents[axis])
        return cast(found, out.dtype)

    return [map_(call.name, out, value)]


def _arrays(
    call: OpCall,
    theta: Array,
    size: Array,
) -> list[Array]:
    extents = [int(n) for n in size[2:]]
    rank = len(extents)
    lines = []
    for n in extents:
        first, step = _places(call, n)
        lines.append(first + step * np.arange(n))
    points = reversed(np.meshgrid(*lines, indexing="ij"))
    base = np.stack([*points, np.ones(extents)], -1)
    found = base.reshape(-1, rank + 1) @ widened(theta).swapaxes(1, 2)
    grid = found.reshape(len(theta), *extents, rank)
    return [grid.astype(theta.dtype)]


register(
    OpDef(
        "AffineGrid", _type, since=20, compute=_grid, reference=_arrays, by_value=(1,)
    )
)
