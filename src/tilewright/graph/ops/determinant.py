"""Det and LogDet: the product of the pivots of Gaussian elimination, and its logarithm."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.compute.build import cast
from tilewright.expr.nodes import Buffer, Expr, Select, call
from tilewright.graph.nodes import Value
from tilewright.graph.ops.broadcasting import widened
from tilewright.graph.ops.derivative import Backward, extents, reshaped
from tilewright.graph.ops.elimination import Elimination, Point
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register
from tilewright.graph.ops.solve import (
    DOMAIN,
    inverse_transposed,
    matrices,
    square_shape,
)
from tilewright.loops.nodes import Kernel, Stmt, Store, block

Buffers = Sequence[Buffer]


def _type(op: OpCall) -> Sequence[Type]:
    return [(op.dtype(0), square_shape(op)[:-2])]


def _det(op: OpCall, inputs: Buffers, outputs: Buffers) -> list[Kernel]:
    x = inputs[0]
    out = outputs[0]
    e = Elimination(x)
    product = e.sign[0]

    def times(k: Expr) -> Stmt:
        return e.set(e.sign, product * e.matrix[k, k])

    def one(i: Point) -> Stmt:
        fill = e.fill(i, x)
        products = e.nests.loop(e.size, times)
        result = Store(out, i, cast(product, out.dtype))
        return block(fill, e.eliminate(), products, result)

    return e.kernel(op, inputs, outputs, one)


def _det_arrays(op: OpCall, x: Array) -> list[Array]:
    found = np.asarray(np.linalg.det(widened(x)))
    return [found.astype(x.dtype)]


def _det_gradient(
    f: Fragment,
    call: Backward,
    x: Sequence[Value],
    y: Value,
    g: Value,
) -> list[Value]:
    """The determinant times the transposed inverse."""
    factor = f.term(g) * y
    return [_times_inverse(f, x[0], factor.value)]


def _times_inverse(f: Fragment, a: Value, factor: Value) -> Value:
    """The transposed inverses of `a`, each times a number."""
    column = reshaped(f, factor, (*extents(factor), 1, 1))
    inverse = f.term(inverse_transposed(f, a))
    found = inverse * column
    return found.value


register(
    OpDef(
        "Det",
        _type,
        since=11,
        compute=_det,
        reference=_det_arrays,
        flops=lambda op: op.size(0) * op.shape(0)[-1] * 2 // 3,
        gradient=_det_gradient,
    )
)


# -- the logarithm


def _log_type(op: OpCall) -> Sequence[Type]:
    """The logarithm of the absolute value, and the sign."""
    matrices(op)
    return [(op.dtype(0), op.shape(0)[:-2])] * 2


def _log_det(op: OpCall, inputs: Buffers, outputs: Buffers) -> list[Kernel]:
    x = inputs[0]
    e = Elimination(x)
    total = e.cell("total")
    sign = e.sign[0]

    def add(k: Expr) -> Stmt:
        pivot = e.matrix[k, k]
        size = call("abs", pivot)
        turned = Select(pivot < 0, -sign, size)  # 0 or NaN
        both = Select(pivot > 0, sign, turned)
        log = call("log", size)
        return block(
            e.set(total, total[0] + log),
            e.set(e.sign, both),
        )

    def one(i: Point) -> Stmt:
        fill = e.fill(i, x)
        start = e.set(total, e.zero)
        sums = e.nests.loop(e.size, add)
        found = zip(outputs, (total, e.sign), strict=False)
        results = [Store(out, i, cell[0]) for out, cell in found if out is not None]
        return block(fill, e.eliminate(), start, sums, *results)

    return e.kernel(op, inputs, outputs, one)


def _log_det_arrays(op: OpCall, x: Array) -> list[Array]:
    sign, log = np.linalg.slogdet(x)
    return [np.asarray(log), np.asarray(sign)]


def _log_gradient(
    f: Fragment,
    call: Backward,
    x: Sequence[Value],
    y: Value,
    g: Value,
) -> list[Value]:
    """The transposed inverse; the sign is constant."""
    call.flow(1)
    return [_times_inverse(f, x[0], g)]


register(
    OpDef(
        "LogDet",
        _log_type,
        DOMAIN,
        compute=_log_det,
        reference=_log_det_arrays,
        flops=lambda op: op.size(0) * op.shape(0)[-1] * 2 // 3,
        gradient=_log_gradient,
    )
)
