"""Normalization by neighboring channels or by a norm: LRN, LpNormalization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.compute.build import cast, map_, padded, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr, Select, call, const
from tilewright.graph.ops.broadcasting import element, wide, wide_dtype, widened
from tilewright.graph.ops.elementwise import same_type
from tilewright.graph.ops.reduce import point_of, reduced_shape
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register
from tilewright.graph.ops.traits import SPATIAL

Buffers = Sequence[Buffer]


def _lrn(
    op: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    """Each element divided by a power of the mean square of its channel's neighborhood."""
    x = inputs[0]
    out = outputs[0]
    size = op.attr("size")
    alpha = op.attr("alpha", 1e-4)
    bias = op.attr("bias", 1.0)
    beta = op.attr("beta", 0.75)
    before, after = _reach(op)
    total = Buffer(f"{op.name}_square", x.shape, wide_dtype(x.dtype))

    def square(*i: Any) -> Expr:
        n, channel, *rest, offset = i
        v = wide(padded(x, (n, channel + offset - before, *rest), 0))
        return v * v

    def normal(*i: Any) -> Expr:
        base = bias + (alpha / size) * total[i]
        return cast(wide(x[i]) / _power(base, beta), out.dtype)

    return [
        reduce_(total.name, total, (before + 1 + after,), "add", square),
        map_(op.name, out, normal),
    ]


def _power(base: Expr, exponent: float) -> Expr:
    """Powers in quarters use square roots, which round exactly, the others `pow`."""
    if exponent == 0.75:
        root = call("sqrt", base)
        return root * call("sqrt", root)
    if exponent == 0.5:
        return call("sqrt", base)
    return call("pow", base, const(exponent, base.dtype))


def _lrn_arrays(op: OpCall, x: Array) -> list[Array]:
    before, after = _reach(op)
    v = widened(x)
    channels = x.shape[1]
    no_padding = [(0, 0)] * (x.ndim - 2)
    square = np.pad(
        v * v,
        [(0, 0), (before, after), *no_padding],
    )
    total = sum(square[:, n : n + channels] for n in range(before + 1 + after))
    base = op.attr("bias", 1.0) + op.attr("alpha", 1e-4) / op.attr("size") * total
    y = v / base ** op.attr("beta", 0.75)
    return [y.astype(x.dtype)]


def _reach(op: OpCall) -> tuple[int, int]:
    """The number of existing channels before and after each one in its neighborhood."""
    size = op.attr("size")
    last = max(op.shape(0)[1] - 1, 0)
    return min((size - 1) // 2, last), min(size // 2, last)


def _lrn_type(op: OpCall) -> Sequence[Type]:
    if op.attr("size") < 1 or op.rank(0) < 2:
        raise op.error(
            f"size is {op.attr('size')}, of a tensor of {op.rank(0)} dimensions"
        )
    return same_type(op)


register(
    OpDef(
        "LRN",
        _lrn_type,
        compute=_lrn,
        reference=_lrn_arrays,
        flops=lambda op: (2 * sum(_reach(op)) + 7) * op.size(0),
        traits=SPATIAL,
    )
)


def _lp_norm(
    op: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation] | None:
    x = inputs[0]
    out = outputs[0]
    p = op.attr("p", 2)
    if p not in (1, 2):
        return None
    rank = len(x.shape)
    axis = op.own_axis(rank, -1)
    shape = reduced_shape(x.shape, [axis], keep=True)
    total = Buffer(f"{op.name}_sum", shape, wide_dtype(x.dtype))

    def term(*i: Any) -> Expr:
        v = wide(x[point_of([axis], rank, True, i)])
        return call("abs", v) if p == 1 else v * v

    def normal(*i: Any) -> Expr:
        norm = element(total, i)
        if p == 2:
            norm = call("sqrt", norm)
        zero = const(0, norm.dtype)
        y = Select(norm.eq(zero), zero, wide(x[i]) / norm)
        return cast(y, out.dtype)

    over = (x.shape[axis],)
    return [
        reduce_(total.name, total, over, "add", term),
        map_(op.name, out, normal),
    ]


def _lp_norm_arrays(op: OpCall, x: Array) -> list[Array]:
    v = widened(x)
    norm = np.linalg.norm(
        v,
        op.attr("p", 2),
        op.attr("axis", -1),
        keepdims=True,
    )
    y = np.divide(
        v,
        norm,
        out=np.zeros_like(v),
        where=norm != 0,
    )
    return [y.astype(x.dtype)]


register(
    OpDef(
        "LpNormalization",
        same_type,
        compute=_lp_norm,
        reference=_lp_norm_arrays,
        flops=lambda op: 3 * op.size(0),
    )
)
