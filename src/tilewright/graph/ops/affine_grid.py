"""AffineGrid: where each element of a result reads an image that an affine map moves."""

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
    theta, size = call.shape(0), call.ints(1) or []
    rank = len(size) - 2
    if rank not in (2, 3) or theta != (size[0], rank, rank + 1):
        raise call.error(f"a map of shape {list(theta)} does not fit the size {size}")
    return [(call.dtype(0), (size[0], *size[2:], rank))]


def _places(call: OpCall, extent: int) -> tuple[float, float]:
    """The first position along an axis, which goes from -1 to 1, and the step to the next.

    With corners aligned one element alone has no step; it stands in the middle, as in PyTorch
    (ONNX's text divides by zero, its reference has -1, ONNX Runtime 1).
    """
    if not call.attr("align_corners", 0):
        return 1 / max(extent, 1) - 1, 2 / max(extent, 1)
    return (-1.0, 2 / (extent - 1)) if extent > 1 else (0.0, 0.0)


def _grid(call: OpCall, inputs: Buffers, outputs: Buffers) -> list[Computation]:
    theta, out = inputs[0], outputs[0]
    work, extents = wide_dtype(theta.dtype), out.shape[1:-1]

    def place(i: Any, extent: int) -> Expr:
        first, step = _places(call, extent)
        return cast(i, work) * const(step, work) + const(first, work)

    def value(n: Any, *rest: Any) -> Expr:
        *at, k = rest
        found = wide(theta[n, k, len(extents)])
        for axis, (i, extent) in enumerate(
            zip(reversed(at), reversed(extents), strict=True)
        ):
            found = found + wide(theta[n, k, axis]) * place(i, extent)
        return cast(found, out.dtype)

    return [map_(call.name, out, value)]


def _arrays(call: OpCall, theta: Array, size: Array) -> list[Array]:
    extents = [int(n) for n in size[2:]]
    lines = [a + b * np.arange(n) for n in extents for a, b in [_places(call, n)]]
    points = [*np.meshgrid(*lines, indexing="ij")][::-1]
    base = np.stack([*points, np.ones(extents)], -1).reshape(-1, len(extents) + 1)
    found = base @ widened(theta).swapaxes(1, 2)
    return [found.reshape(len(theta), *extents, len(extents)).astype(theta.dtype)]


register(
    OpDef(
        "AffineGrid", _type, since=20, compute=_grid, reference=_arrays, by_value=(1,)
    )
)
