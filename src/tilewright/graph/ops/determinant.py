"""Det and LogDet: the product of the pivots of Gaussian elimination, and its logarithm."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.compute.build import cast
from tilewright.expr.nodes import Buffer, Expr, Select, call, const
from tilewright.graph.nodes import Value
from tilewright.graph.ops.broadcasting import widened
from tilewright.graph.ops.derivative import Backward, extents, reshaped
from tilewright.graph.ops.elimination import Elimination, square_shape
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.nests import LoopNests, kernel
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register
from tilewright.graph.ops.solve import DOMAIN, inverse_transposed, matrices
from tilewright.loops.nodes import Kernel, Stmt, Store, block

Buffers = Sequence[Buffer]


def _type(op: OpCall) -> Sequence[Type]:
    return [(op.dtype(0), square_shape(op)[:-2])]


def _det(op: OpCall, inputs: Buffers, outputs: Buffers) -> list[Kernel]:
    out = outputs[0]
    nests = LoopNests()
    e = Elimination(nests, inputs[0])

    def times(k: Expr) -> Stmt:
        return Store(e.sign, e.zero, e.sign[0] * e.matrix[k, k])

    def one(*i: Expr) -> Stmt:
        result = Store(out, i, cast(e.sign[0], out.dtype))
        return e.around(i, block(nests.loop(e.size, times), result))

    body = nests.rows(out.shape, e.size**3, one)
    return [kernel(op.name, inputs, outputs, body, nests.notes)]


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
    return [_times_inverse(f, x[0], f.op("Mul", g, y))]


def _times_inverse(f: Fragment, a: Value, factor: Value) -> Value:
    """The transposed inverses of `a`, each times a number."""
    column = reshaped(f, factor, (*extents(factor), 1, 1))
    return f.op("Mul", inverse_transposed(f, a), column)


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
    nests = LoopNests()
    e = Elimination(nests, inputs[0])
    total = e.cell("total")
    zero = const(0, e.dtype)

    def add(k: Expr) -> Stmt:
        pivot = e.matrix[k, k]
        size = call("abs", pivot)
        turned = Select(pivot < 0, -e.sign[0], size)  # 0 or NaN
        sign = Select(pivot > 0, e.sign[0], turned)
        log = call("log", size)
        return block(
            Store(total, e.zero, total[0] + log),
            Store(e.sign, e.zero, sign),
        )

    def one(*i: Expr) -> Stmt:
        found = zip(outputs, (total, e.sign), strict=False)
        results = [Store(out, i, cell[0]) for out, cell in found if out is not None]
        start = Store(total, e.zero, zero)
        return e.around(i, block(start, nests.loop(e.size, add), *results))

    body = nests.rows(inputs[0].shape[:-2], e.size**3, one)
    return [kernel(op.name, inputs, outputs, body, nests.notes)]


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
