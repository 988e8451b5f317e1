"""Products: MatMul, Gemm, Einsum. Floats narrower than float32 accumulate in float32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.dtypes import float32
from tilewright.compute.build import cast, map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr, const
from tilewright.graph.nodes import Value
from tilewright.graph.ops.broadcasting import (
    broadcast,
    operand,
    wide,
    wide_dtype,
    widened,
)
from tilewright.graph.ops.derivative import extents, reshaped, scaled, turned
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register
from tilewright.graph.ops.traits import CHANGES_AXES, STACKS

Buffers = Sequence[Buffer]


def matmul_shape(
    call: OpCall,
    a: tuple[int, ...],
    b: tuple[int, ...],
) -> tuple[int, ...]:
    """The shape of a @ b by NumPy's rules. Raises ModelError if they do not fit."""
    if not a or not b:
        raise call.error("an operand of a matrix product is a scalar")
    rows = a[-2:-1]
    columns = b[-1:] if len(b) > 1 else ()
    if a[-1] != (b[-2] if len(b) > 1 else b[0]):
        raise call.error(f"shapes {list(a)} and {list(b)} do not multiply")
    return (*broadcast(call, a[:-2], b[:-2]), *rows, *columns)


def product(
    name: str,
    out: Buffer,
    left: Buffer,
    right: Buffer,
    dtype: Any = None,
) -> Computation:
    """out = left @ right by NumPy's rules. dtype: of the accumulator."""
    accumulator = wide_dtype(left.dtype) if dtype is None else dtype
    batch = len(out.shape) - (len(left.shape) > 1) - (len(right.shape) > 1)

    def value(*i: Any) -> Expr:
        k = i[-1]
        a = (
            _batch(left, i[:batch])
            + ((i[batch],) if len(left.shape) > 1 else ())
            + (k,)
        )
        b = _batch(right, i[:batch]) + ((k, i[-2]) if len(right.shape) > 1 else (k,))
        return cast(left[a], accumulator) * cast(right[b], accumulator)

    return reduce_(name, out, (left.shape[-1],), "add", value)


def _batch(x: Buffer, i: Sequence[Any]) -> tuple[Any, ...]:
    """The point of x's leading axes for a point of the broadcast ones."""
    extents = x.shape[:-2]
    last = i[len(i) - len(extents) :]
    return tuple(const(0) if n == 1 else v for v, n in zip(last, extents, strict=True))


def _matmul(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    return [product(call.name, outputs[0], inputs[0], inputs[1])]


def _matmul_arrays(
    _: OpCall,
    a: Array,
    b: Array,
) -> list[Array]:
    return [np.asarray(np.matmul(widened(a), widened(b))).astype(a.dtype)]


def _matmul_flops(call: OpCall) -> int:
    return 2 * call.size_out(0) * call.shape(0)[-1]


def _matmul_gradient(
    f: Fragment,
    call: OpCall,
    x: Sequence[Value],
    y: Value,
    g: Value,
) -> Sequence[Value]:
    """A vector is treated as a matrix of one row or one column."""
    a, b = x
    rows = call.shape(0)
    columns = call.shape(1)
    shape = list(extents(g))
    if len(columns) == 1:
        b = reshaped(f, b, (*columns, 1))
        shape = [*shape, 1]
    if len(rows) == 1:
        a = reshaped(f, a, (1, *rows))
        shape.insert(len(shape) - 1, 1)
    g = reshaped(f, g, shape) if shape != list(extents(g)) else g
    to_a = f.op("MatMul", g, turned(f, b))
    to_b = f.op("MatMul", turned(f, a), g)
    if len(rows) == 1:
        to_a = reshaped(f, to_a, extents(to_a)[:-2] + rows)
    if len(columns) == 1:
        to_b = reshaped(f, to_b, extents(to_b)[:-2] + columns)
    return to_a, to_b


register(
    OpDef(
        "MatMul",
        lambda call: call.result(matmul_shape(call, call.shape(0), call.shape(1))),
        compute=_matmul,
        reference=_matmul_arrays,
        flops=_matmul_flops,
        traits=CHANGES_AXES | STACKS,
        gradient=_matmul_gradient,
    )
)


# For operands that are floats of different types: float32 for the sum and the result.
MIXED = "MixedMatMul"


def _mixed_arrays(
    _: OpCall,
    a: Array,
    b: Array,
) -> list[Array]:
    return [np.matmul(a.astype(np.float32), b.astype(np.float32))]


register(
    OpDef(
        MIXED,
        lambda call: [(float32, matmul_shape(call, call.shape(0), call.shape(1)))],
        "tilewright",
        compute=_matmul,
        reference=_mixed_arrays,
        flops=_matmul_flops,
        traits=CHANGES_AXES | STACKS,
    )
)


def _gemm_shape(call: OpCall) -> tuple[int, int, int]:
    """The number of rows and columns, and the extent summed over."""
    a = call.shape(0)
    b = call.shape(1)
    if len(a) != 2 or len(b) != 2:
        raise call.error(f"shapes {list(a)} and {list(b)} are not matrices")
    m, k = a[::-1] if call.attr("transA", 0) else a
    k2, n = b[::-1] if call.attr("transB", 0) else b
    if k != k2:
        raise call.error(f"shapes {list(a)} and {list(b)} do not multiply")
    return m, n, k


def _gemm_type(call: OpCall) -> Sequence[Type]:
    m, n, _ = _gemm_shape(call)
    if call.has(2) and broadcast(call, call.shape(2), (m, n)) != (m, n):
        raise call.error(
            f"C of shape {list(call.shape(2))} does not broadcast to {[m, n]}"
        )
    return call.result((m, n))


def _gemm(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    a = inputs[0]
    b = inputs[1]
    out = outputs[0]
    across = call.attr("transA", 0)
    down = call.attr("transB", 0)
    alpha = call.attr("alpha", 1.0)
    beta = call.attr("beta", 1.0)
    plain = alpha == 1.0 and (not call.has(2) or beta == 0.0)
    if plain:
        total = out
    else:
        total = Buffer(f"{call.name}_product", out.shape, wide_dtype(a.dtype))

    def value(i: Any, j: Any, k: Any) -> Expr:
        return wide(a[(k, i) if across else (i, k)]) * wide(
            b[(j, k) if down else (k, j)]
        )

    found = [
        reduce_(f"{call.name}_product", total, (_gemm_shape(call)[2],), "add", value)
    ]
    if plain:
        return found

    def scaled(*i: Any) -> Expr:
        result = _times(total[i], alpha)
        if call.has(2) and beta != 0.0:
            result = result + _times(wide(operand(call, inputs, 2, i)), beta)
        return cast(result, out.dtype)

    return [*found, map_(call.name, out, scaled)]


def _times(x: Expr, factor: float) -> Expr:
    if factor == 1.0:
        return x
    if x.dtype.is_float:
        return x * factor
    from tilewright.base.dtypes import float64

    return cast(cast(x, float64) * factor, x.dtype)


def _gemm_arrays(
    call: OpCall,
    a: Array,
    b: Array,
    c: Array | None = None,
) -> list[Array]:
    left = widened(a.T if call.attr("transA", 0) else a)
    right = widened(b.T if call.attr("transB", 0) else b)
    found = (left @ right) * call.attr("alpha", 1.0)
    if c is not None:
        found = found + widened(c) * call.attr("beta", 1.0)
    return [found.astype(a.dtype)]


def _gemm_gradient(
    f: Fragment,
    call: OpCall,
    x: Sequence[Value],
    y: Value,
    g: Value,
) -> Sequence[Value]:
    a, b = x[:2]
    alpha = call.attr("alpha", 1.0)
    across = call.attr("transA", 0)
    down = call.attr("transB", 0)

    def product(
        left: Value,
        right: Value,
        turn_left: int,
        turn_right: int,
    ) -> Value:
        return f.op(
            "Gemm", left, right, transA=turn_left, transB=turn_right, alpha=alpha
        )

    if across:
        to_a = product(b, g, down, 1)
    else:
        to_a = product(g, b, 0, 1 - down)
    if down:
        to_b = product(g, a, 1, across)
    else:
        to_b = product(a, g, 1 - across, 0)
    return to_a, to_b, scaled(f, g, call.attr("beta", 1.0))


register(
    OpDef(
        "Gemm",
        _gemm_type,
        compute=_gemm,
        reference=_gemm_arrays,
        flops=lambda call: 2 * math.prod(_gemm_shape(call)),
        traits=CHANGES_AXES,
        gradient=_gemm_gradient,
    )
)
