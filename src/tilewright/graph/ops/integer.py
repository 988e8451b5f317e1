"""Products and convolutions of quantised integers: MatMulInteger, ConvInteger, QLinearMatMul and
QLinearConv. They accumulate in int32 (wrapping around); the Q forms scale the sum in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewright.base.dtypes import float32, int32
from tilewright.compute.build import cast, map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr, const
from tilewright.graph.ops.broadcasting import element
from tilewright.graph.ops.conv import convolution, geometry
from tilewright.graph.ops.matmul import matmul_shape
from tilewright.graph.ops.quantize import only, quantized
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register
from tilewright.graph.ops.windows import Windows

Buffers = Sequence[Buffer]
ROWS, COLUMNS = -2, -1


def along(call: OpCall, inputs: Buffers, i: int, point: Sequence[Any], axis: int) -> Expr:
    """A parameter at `point` of a matrix product's operand or result.

    It is one number, a vector along `axis` (ROWS or COLUMNS), or of as many axes as the operand.
    """
    p = inputs[i]
    if p.size == 1:
        return only(call, inputs, i)
    return p[point[axis]] if len(p.shape) == 1 else element(p, point)


def _int_product(
    call: OpCall, out: Buffer, inputs: Buffers, a: int, b: int, zeros: tuple[int, int]
) -> Computation:
    """out = (a - zero of a) @ (b - zero of b); all numbers name inputs."""
    left, right = inputs[a], inputs[b]
    rows, columns = len(left.shape) > 1, len(right.shape) > 1
    batch = len(out.shape) - rows - columns

    def shifted(x: Buffer, zero: int, point: tuple[Any, ...], axis: int) -> Expr:
        v = cast(element(x, point), int32)
        if not call.has(zero):
            return v
        return v - cast(along(call, inputs, zero, point, axis), int32)

    def value(*i: Any) -> Expr:
        k = i[-1]
        at_left = (*i[:batch], i[batch], k) if rows else (*i[:batch], k)
        at_right = (*i[:batch], k, i[-2]) if columns else (*i[:batch], k)
        return shifted(left, zeros[0], at_left, ROWS if rows else COLUMNS) * shifted(
            right, zeros[1], at_right, COLUMNS
        )

    return reduce_(f"{call.name}_sum", out, (left.shape[-1],), "add", value)


def _flops(a: int, b: int) -> Any:
    return lambda call: 2 * call.size_out(0) * call.shape(a)[-1]


register(
    OpDef(
        "MatMulInteger",
        lambda call: [(int32, matmul_shape(call, call.shape(0), call.shape(1)))],
        since=10,
        compute=lambda call, inputs, outputs: [
            _int_product(call, outputs[0], inputs, 0, 1, (2, 3))
        ],
        flops=_flops(0, 1),
    )
)


def _ratio(a: Expr, b: Expr, y: Expr) -> Expr:
    return cast(a, float32) * cast(b, float32) / cast(y, float32)


def _qlinear_matmul(call: OpCall, inputs: Buffers, outputs: Buffers) -> list[Computation]:
    out = outputs[0]
    total = Buffer(f"{call.name}_sum", out.shape, int32)
    row_axis = ROWS if len(inputs[0].shape) > 1 else COLUMNS

    def value(*i: Any) -> Expr:
        a = along(call, inputs, 1, i, row_axis)
        b = along(call, inputs, 4, i, COLUMNS)
        y = along(call, inputs, 6, i, row_axis)
        scaled = cast(total[i], float32) * _ratio(a, b, y)
        return quantized(scaled, along(call, inputs, 7, i, row_axis), out.dtype)

    return [_int_product(call, total, inputs, 0, 3, (2, 5)), map_(call.name, out, value)]


register(
    OpDef(
        "QLinearMatMul",
        lambda call: [(call.dtype(7), matmul_shape(call, call.shape(0), call.shape(3)))],
        since=10,
        compute=_qlinear_matmul,
        flops=_flops(0, 3),
    )
)


def _int_convolution(
    call: OpCall, out: Buffer, inputs: Buffers, x: int, w: int, zeros: tuple[int, int]
) -> Computation:
    data, weights = inputs[x], inputs[w]
    none = const(0, data.dtype)
    zero_x = only(call, inputs, zeros[0]) if call.has(zeros[0]) else none

    def zero_w(m: Any) -> Expr:
        if not call.has(zeros[1]):
            return const(0, weights.dtype)
        given = inputs[zeros[1]]
        return only(call, inputs, zeros[1]) if given.size == 1 else given[m]

    shape = _windows(call, x, w)
    group = call.attr("group", 1)
    return convolution(f"{call.name}_sum", out, data, weights, shape, group, (zero_x, zero_w))


def _windows(call: OpCall, x: int, w: int) -> Windows:
    return geometry(call, call.shape(x), call.shape(w))


def _conv_flops(x: int, w: int) -> Any:
    return lambda call: 2 * call.size_out(0) * math.prod(call.shape(w)[1:])


def _conv_shape(call: OpCall, x: int, w: int) -> tuple[int, ...]:
    return (call.shape(x)[0], call.shape(w)[0], *_windows(call, x, w).outputs)


register(
    OpDef(
        "ConvInteger",
        lambda call: [(int32, _conv_shape(call, 0, 1))],
        since=10,
        compute=lambda call, inputs, outputs: [
            _int_convolution(call, outputs[0], inputs, 0, 1, (2, 3))
        ],
        flops=_conv_flops(0, 1),
    )
)


def _qlinear_conv_type(call: OpCall) -> Sequence[Type]:
    return [(call.dtype(7), _conv_shape(call, 0, 3))]


def _qlinear_conv(call: OpCall, inputs: Buffers, outputs: Buffers) -> list[Computation]:
    out = outputs[0]
    total = Buffer(f"{call.name}_sum", out.shape, int32)

    def value(*i: Any) -> Expr:
        w = only(call, inputs, 4) if inputs[4].size == 1 else inputs[4][i[1]]
        factor = _ratio(only(call, inputs, 1), w, only(call, inputs, 6))
        whole: Expr = total[i]
        if call.has(8):
            whole = whole + inputs[8][i[1]]
        return quantized(cast(whole, float32) * factor, only(call, inputs, 7), out.dtype)

    return [_int_convolution(call, total, inputs, 0, 3, (2, 5)), map_(call.name, out, value)]


register(
    OpDef(
        "QLinearConv",
        _qlinear_conv_type,
        since=10,
        compute=_qlinear_conv,
        flops=_conv_flops(0, 3),
    )
)
