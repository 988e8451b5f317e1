"""Normalization by neighbors or by a norm: LRN, LpNormalization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.compute.build import cast, map_, padded, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr, Select, call, const
from tilewright.graph.ops.broadcasting import element, wide, wide_dtype, widened
from tilewright.graph.ops.elementwise import same_type
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register
from tilewright.graph.ops.traits import SPATIAL

Buffers = Sequence[Buffer]


def _lrn(op: OpCall, inputs: Buffers, outputs: Buffers) -> list[Computation]:
    """Each element over a power of the mean square of its channel's neighborhood."""
    x, out = inputs[0], outputs[0]
    size, alpha = op.attr("size"), op.attr("alpha", 1e-4)
    before, after = _reach(op)
    total = Buffer(f"{op.name}_square", x.shape, wide_dtype(x.dtype))

    def square(*i: Any) -> Expr:
        v = wide(padded(x, (i[0], i[1] + i[-1] - before, *i[2:-1]), 0))
        return v * v

    def normal(*i: Any) -> Expr:
        base = op.attr("bias", 1.0) + (alpha / size) * total[i]
        return cast(wide(x[i]) / _power(base, op.attr("beta", 0.75)), out.dtype)

    return [
        reduce_(total.name, total, (before + 1 + after,), "add", square),
        map_(op.name, out, normal),
    ]


def _power(base: Expr, exponent: float) -> Expr:
    """Quarters by square roots, which are exactly rounded, else by `pow`."""
    if exponent == 0.75:
        root = call("sqrt", base)
        return root * call("sqrt", root)
    if exponent == 0.5:
        return call("sqrt", base)
    return call("pow", base, const(exponent, base.dtype))


def _lrn_arrays(op: OpCall, x: Array) -> list[Array]:
    (before, after), v = _reach(op), widened(x)
    square = np.pad(v * v, [(0, 0), (before, after)] + [(0, 0)] * (x.ndim - 2))
    total = sum(square[:, n : n + x.shape[1]] for n in range(before + 1 + after))
    base = op.attr("bias", 1.0) + op.attr("alpha", 1e-4) / op.attr("size") * total
    return [(v / base ** op.attr("beta", 0.75)).astype(x.dtype)]


def _reach(op: OpCall) -> tuple[int, int]:
    """Channels before and after each that its neighborhood has, no further than there are any."""
    size, last = op.attr("size"), max(op.shape(0)[1] - 1, 0)
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


def _lp_norm(op: OpCall, inputs: Buffers, outputs: Buffers) -> list[Computation] | None:
    x, out, p = inputs[0], outputs[0], op.attr("p", 2)
    if p not in (1, 2):
        return None
    axis = op.axis(op.attr("axis", -1), len(x.shape))
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    total = Buffer(f"{op.name}_sum", shape, wide_dtype(x.dtype))

    def value(*i: Any) -> Expr:
        v = wide(x[(*i[:axis], i[-1], *i[axis + 1 : -1])])
        return call("abs", v) if p == 1 else v * v

    def normal(*i: Any) -> Expr:
        norm = element(total, i)
        norm = norm if p == 1 else call("sqrt", norm)
        zero = const(0, norm.dtype)
        return cast(Select(norm.eq(zero), zero, wide(x[i]) / norm), out.dtype)

    over = (x.shape[axis],)
    return [reduce_(total.name, total, over, "add", value), map_(op.name, out, normal)]


def _lp_norm_arrays(op: OpCall, x: Array) -> list[Array]:
    v = widened(x)
    norm = np.linalg.norm(v, op.attr("p", 2), op.attr("axis", -1), keepdims=True)
    return [np.divide(v, norm, out=np.zeros_like(v), where=norm != 0).astype(x.dtype)]


register(
    OpDef(
        "LpNormalization",
        same_type,
        compute=_lp_norm,
        reference=_lp_norm_arrays,
        flops=lambda op: 3 * op.size(0),
    )
)
