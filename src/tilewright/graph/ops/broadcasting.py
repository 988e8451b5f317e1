"""Reading operands with NumPy's broadcasting, and the shapes that result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.compute.build import cast
from tilewright.expr.nodes import Buffer, Expr, const
from tilewright.graph.ops.registry import OpCall


def broadcast(call: OpCall, *shapes: Sequence[int]) -> tuple[int, ...]:
    """The common shape. Raises ModelError if there is none."""
    # Not np.broadcast_shapes: it also rejects shapes of more elements than it can count.
    rank = max(map(len, shapes), default=0)
    padded = ((1,) * (rank - len(s)) + tuple(s) for s in shapes)
    extents = [{int(n) for n in along} - {1} for along in zip(*padded, strict=True)]
    if any(len(found) > 1 for found in extents):
        shown = " and ".join(str(list(s)) for s in shapes)
        raise call.error(f"shapes {shown} do not broadcast")
    return tuple(found.pop() if found else 1 for found in extents)


def refuse_stretching(call: OpCall, **operands: int) -> None:
    """Raise ModelError if an operand, broadcast with operand 0, would change its shape.

    operands: their positions, by the names used in errors; an omitted one fits.
    """
    shape = call.shape(0)
    for name, n in operands.items():
        if call.has(n) and broadcast(call, shape, call.shape(n)) != shape:
            raise call.error(
                f"{name} has the shape {list(call.shape(n))}, which would stretch the input "
                f"{list(shape)}"
            )


def element(x: Buffer, point: Sequence[Any]) -> Expr:
    """Read `x` at a point of a shape that it broadcasts to."""
    last = point[len(point) - len(x.shape) :]
    return x[
        tuple(const(0) if n == 1 else i for i, n in zip(last, x.shape, strict=True))
    ]


def replaced(values: Sequence[Any], axis: int, new: Any) -> tuple[Any, ...]:
    """A shape or point with the element at `axis` replaced."""
    return (*values[:axis], new, *values[axis + 1 :])


def inserted(values: Sequence[Any], axis: int, new: Any) -> tuple[Any, ...]:
    """A shape or point with one more element, at `axis`."""
    return (*values[:axis], new, *values[axis:])


def without(values: Sequence[Any], axis: int) -> tuple[Any, ...]:
    """A shape or point without the element at `axis`."""
    return (*values[:axis], *values[axis + 1 :])


def operand(
    call: OpCall,
    inputs: Sequence[Buffer],
    i: int,
    point: Sequence[Any],
) -> Expr:
    """Input `i` at a point of the broadcast shape; a known scalar becomes a constant."""
    known = call.constant(i)
    if known is not None and known.size == 1:
        return const(known.reshape(-1)[0], inputs[i].dtype)
    return element(inputs[i], point)


def wide(x: Expr) -> Expr:
    """`x` in the dtype to compute in: float32 for narrower floats, else its own dtype."""
    return cast(x, wide_dtype(x.dtype))


def wide_dtype(dtype: DType) -> DType:
    """float32 for floats narrower than that, else the dtype itself."""
    if dtype.is_float and dtype.bits < 32:
        return dtypes.float32
    return dtype


def widened(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """As `wide`, for arrays."""
    return array.astype(wide_dtype(dtypes.dtype_of(array.dtype)).numpy, copy=False)
