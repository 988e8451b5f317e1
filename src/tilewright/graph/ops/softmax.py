"""The Softmax family: the maximum, the exponentials and their sum over some axes, then a map.

Floats narrower than float32 are computed in float32 throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.compute.build import cast, map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr, call
from tilewright.graph.ops.broadcasting import (
    element,
    wide,
    wide_dtype,
    widened,
)
from tilewright.graph.ops.elementwise import same_type
from tilewright.graph.ops.reduce import point_of, reduced_shape
from tilewright.graph.ops.registry import Array, OpCall, OpDef, register
from tilewright.graph.ops.softmax_gradient import log_softmax_gradient, softmax_gradient

Buffers = Sequence[Buffer]


def _softmax_axes(op: OpCall, rank: int) -> list[int]:
    """One axis since version 13; before, all axes from `axis` on."""
    if op.version >= 13:
        return [op.own_axis(rank, -1)]
    return list(range(op.own_axis(rank, 1), rank))


@dataclass(frozen=True)
class Exponentials:
    """exp(x - max) over some axes: the maximum, the exponentials and their sum."""

    top: Buffer
    terms: Buffer
    total: Buffer
    steps: tuple[Computation, ...]


def exponentials(
    name: str,
    x: Buffer,
    axes: Sequence[int],
    dtype: DType,
) -> Exponentials:
    """The steps that Softmax and LogSoftmax share, in the accumulator dtype."""
    rank = len(x.shape)
    shape = reduced_shape(x.shape, axes, keep=True)
    over = [x.shape[a] for a in axes]
    top = Buffer(f"{name}_max", shape, dtype)
    terms = Buffer(f"{name}_exp", x.shape, dtype)
    total = Buffer(f"{name}_sum", shape, dtype)

    def operand(*i: Any) -> Expr:
        return cast(x[point_of(axes, rank, True, i)], dtype)

    def term(*i: Any) -> Expr:
        return call("exp", cast(x[i], dtype) - element(top, i))

    def summand(*i: Any) -> Expr:
        return terms[point_of(axes, rank, True, i)]

    steps = (
        # A NaN also reaches the sum of the exponentials.
        reduce_(top.name, top, over, "max_number", operand),
        map_(terms.name, terms, term),
        reduce_(total.name, total, over, "add", summand),
    )
    return Exponentials(top, terms, total, steps)


def _softmax(
    op: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    x = inputs[0]
    out = outputs[0]
    axes = _softmax_axes(op, len(x.shape))
    e = exponentials(op.name, x, axes, wide_dtype(x.dtype))
    # One division per sum, not per term: the sum is between 1 and the number of terms.
    factor = Buffer(f"{op.name}_factor", e.total.shape, e.total.dtype)

    def share(*i: Any) -> Expr:
        return cast(e.terms[i] * element(factor, i), out.dtype)

    return [
        *e.steps,
        map_(factor.name, factor, lambda *i: 1.0 / e.total[i]),
        map_(op.name, out, share),
    ]


def _log_softmax(
    op: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    x = inputs[0]
    out = outputs[0]
    axes = _softmax_axes(op, len(x.shape))
    e = exponentials(op.name, x, axes, wide_dtype(x.dtype))

    def value(*i: Any) -> Expr:
        shifted = wide(x[i]) - element(e.top, i)
        return cast(shifted - call("log", element(e.total, i)), out.dtype)

    return [*e.steps, map_(op.name, out, value)]


def _softmax_arrays(log: bool) -> Any:
    def reference(op: OpCall, x: Array) -> list[Array]:
        axes = tuple(_softmax_axes(op, x.ndim))
        v = widened(x)
        shifted = v - np.max(v, axes, keepdims=True, initial=-np.inf)
        e = np.exp(shifted)
        total = np.sum(e, axes, keepdims=True)
        y = shifted - np.log(total) if log else e / total
        return [y.astype(x.dtype)]

    return reference


register(
    OpDef(
        "Softmax",
        same_type,
        compute=_softmax,
        reference=_softmax_arrays(False),
        flops=lambda op: 5 * op.size(0),
        gradient=softmax_gradient(_softmax_axes),
    )
)


register(
    OpDef(
        "LogSoftmax",
        same_type,
        compute=_log_softmax,
        reference=_softmax_arrays(True),
        flops=lambda op: 5 * op.size(0),
        gradient=log_softmax_gradient(_softmax_axes),
    )
)
