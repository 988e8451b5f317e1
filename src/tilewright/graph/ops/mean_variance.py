"""MeanVarianceNormalization: subtract the mean and divide by the deviation over given axes.

ONNX defines it as a function with float32 constants for operands of every type, whose variance is a
difference of two means. Here the variance is the mean of squared deviations, which avoids
cancellation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tilewright.compute.build import cast, map_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr, call
from tilewright.graph.ops.broadcasting import element, wide, widened
from tilewright.graph.ops.norm import moments
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register

_AXES: Final = (0, 2, 3)
_EPSILON: Final = 1e-9  # added to the deviation, not to the variance


def _type(op: OpCall) -> Sequence[Type]:
    _axes(op)
    return op.result(op.shape(0))


def _axes(op: OpCall) -> tuple[int, ...]:
    """The axes counted from the front; all if none is named, as in ONNX's reductions."""
    rank = len(op.shape(0))
    axes = op.attr("axes", _AXES) or range(rank)
    return tuple(sorted({op.axis(a, rank) for a in axes}))


def _normalized(
    op: OpCall,
    inputs: Sequence[Buffer],
    outputs: Sequence[Buffer],
) -> list[Computation]:
    x, out = inputs[0], outputs[0]
    m = moments(op.name, x, _axes(op))

    def normal(*i: Any) -> Expr:
        deviation = call("sqrt", element(m.square, i) / m.count) + _EPSILON
        return cast((wide(x[i]) - element(m.mean, i)) / deviation, out.dtype)

    return [*m.steps, map_(op.name, out, normal)]


def _normalized_arrays(op: OpCall, x: Array) -> list[Array]:
    axes, v = _axes(op), widened(x)
    if not v.size:
        return [x]
    deviation = v.std(axes, keepdims=True) + _EPSILON
    found = (v - v.mean(axes, keepdims=True)) / deviation
    return [found.astype(x.dtype)]


register(
    OpDef(
        "MeanVarianceNormalization",
        _type,
        since=9,
        compute=_normalized,
        reference=_normalized_arrays,
        flops=lambda op: 7 * op.size(0),
    )
)
