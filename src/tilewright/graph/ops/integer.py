"""Products and convolutions of quantized integers: MatMulInteger, ConvInteger, QLinear forms.

They accumulate in int32, wrapping around; QLinearMatMul and QLinearConv scale the sum in float32.
Only products and convolutions of bytes by int8 without zero points are native; the others are these
plus the terms of their zero points (`offsets`). `on_unsigned` makes both factors uint8 by int8.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewright.base.dtypes import float32, int8, int32, int64, uint8
from tilewright.compute.build import cast, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr
from tilewright.graph.nodes import Value
from tilewright.graph.ops.broadcasting import element
from tilewright.graph.ops.conv import convolution, geometry
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.matmul import matmul_shape
from tilewright.graph.ops.offsets import HALF, corrected, factor, moved, shaped, total
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register
from tilewright.graph.ops.traits import SPATIAL
from tilewright.graph.ops.windows import Windows

Buffers = Sequence[Buffer]
_Factors = tuple[Value, Value, Value | None, Value | None]
_BYTES = {uint8, int8}


def _is_plain(call: OpCall) -> bool:
    """Whether the inputs are bytes and int8 without zero points."""
    if call.has(2) or call.has(3):
        return False
    return call.dtype(0) in _BYTES and call.dtype(1) is int8


def _optional(call: OpCall, i: int) -> Value | None:
    if call.has(i):
        return call.value(i)
    return None


def _factors(call: OpCall) -> _Factors:
    """Both factors, and their zero points."""
    zeros = _optional(call, 2), _optional(call, 3)
    return call.value(0), call.value(1), *zeros


# ------------------------------------------------------------------------------------- products


def _product(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation] | None:
    left, right = inputs[:2]
    if not _is_plain(call) or min(len(left.shape), len(right.shape)) < 2:
        return None

    def value(*i: Any) -> Expr:
        *batch, row, column, k = i
        a = element(left, (*batch, row, k))
        b = element(right, (*batch, k, column))
        return cast(a, int32) * cast(b, int32)

    return [
        reduce_(
            call.name,
            outputs[0],
            (left.shape[-1],),
            "add",
            value,
        )
    ]


def _product_parts(call: OpCall, f: Fragment) -> Sequence[Value] | None:
    if _is_plain(call) and min(call.rank(0), call.rank(1)) > 1:
        return None
    return [_multiplied(f, *_factors(call))]


def _multiplied(
    f: Fragment,
    a: Value,
    b: Value,
    a_zero: Value | None,
    b_zero: Value | None,
) -> Value:
    """(a - its zero point) @ (b - its zero point), in int32."""
    vectors = [n for n, x in ((-2, a), (-1, b)) if len(x.extents) == 1]
    if len(a.extents) == 1:
        a = f.unsqueeze(a, 0)
    if len(b.extents) == 1:
        b = f.unsqueeze(b, 1)
    left = factor(f, a, _rows(f, a_zero))
    right = factor(f, b, _scalar(f, b_zero), int8)
    product = f.op("MatMulInteger", left.value, right.value)
    sums = (
        lambda: total(f, left.value, [-1], True),
        lambda: total(f, right.value, [-2], True),
    )
    product = corrected(f, product, left, right, a.extents[-1], sums)
    if vectors:
        return f.squeeze(product, *vectors)
    return product


def _scalar(f: Fragment, x: Value | None) -> Value | None:
    """A parameter; one with a single element becomes a scalar."""
    if x is None or math.prod(x.extents) != 1 or not x.extents:
        return x
    return shaped(f, x, ())


def _rows(f: Fragment, x: Value | None) -> Value | None:
    """A parameter that has one number per row if it has one axis."""
    x = _scalar(f, x)
    if x is None or len(x.extents) != 1:
        return x
    return shaped(f, x, (-1, 1))


def _flops(a: int, b: int) -> Any:
    return lambda call: 2 * call.size_out(0) * call.shape(a)[-1]


register(
    OpDef(
        "MatMulInteger",
        lambda call: [(int32, matmul_shape(call, call.shape(0), call.shape(1)))],
        since=10,
        compute=_product,
        decompose=_product_parts,
        flops=_flops(0, 1),
    )
)


def requantized(
    f: Fragment,
    x: Value,
    a: Value,
    b: Value,
    y: Value,
    zero: Value,
    axis: int = 1,
) -> Value:
    """int32 `x` times the scales a * b / y, about `zero` in its dtype; a vector is along `axis`."""
    a, b, y = (f.cast(v, float32) for v in (a, b, y))
    ratio = f.term(a) * b / y
    real = f.term(f.cast(x, float32)) * ratio
    return real.op("QuantizeLinear", 1, zero, axis=axis).value


def _qlinear_matmul(call: OpCall, f: Fragment) -> Sequence[Value] | None:
    """inputs: a, its scale and zero point, b, its scale and zero point, then the result's two."""
    if not _in_bytes(call):
        return None
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (
        call.value(n) for n in range(8)
    )
    product = _multiplied(f, a, b, a_zero, b_zero)
    by_row = _rows if call.rank(0) > 1 else _scalar
    first, last = (by_row(f, x) for x in (a_scale, y_scale))
    second, zero = (_scalar(f, x) for x in (b_scale, y_zero))
    assert (
        first is not None
        and second is not None
        and last is not None
        and zero is not None
    )
    return [requantized(f, product, first, second, last, zero, -2)]


def _in_bytes(call: OpCall) -> bool:
    """Whether both factors and the result of a QLinear form are bytes."""
    dtypes = {call.dtype(n) for n in (0, 3, 7)}
    return dtypes <= _BYTES


register(
    OpDef(
        "QLinearMatMul",
        lambda call: [
            (call.dtype(7), matmul_shape(call, call.shape(0), call.shape(3)))
        ],
        since=10,
        decompose=_qlinear_matmul,
        flops=_flops(0, 3),
    )
)


# --------------------------------------------------------------------------------- convolutions


def _convolution(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation] | None:
    if not _is_plain(call):
        return None
    x, w = inputs[:2]
    shape = _windows(call, 0, 1)
    group = call.attr("group", 1)
    return [convolution(call.name, outputs[0], x, w, shape, group)]


def _windows(call: OpCall, x: int, w: int) -> Windows:
    return geometry(call, call.shape(x), call.shape(w))


def _conv_flops(x: int, w: int) -> Any:
    return lambda call: 2 * call.size_out(0) * math.prod(call.shape(w)[1:])


def _conv_shape(
    call: OpCall,
    x: int,
    w: int,
) -> tuple[int, ...]:
    return (call.shape(x)[0], call.shape(w)[0], *_windows(call, x, w).outputs)


def _conv_parts(call: OpCall, f: Fragment) -> Sequence[Value] | None:
    if _is_plain(call):
        return None
    windows = _windows(call, 0, 1)
    return [_convolved(call, f, *_factors(call), windows)]


def _convolved(
    call: OpCall,
    f: Fragment,
    x: Value,
    w: Value,
    x_zero: Value | None,
    w_zero: Value | None,
    shape: Windows,
    bias: Value | None = None,
) -> Value:
    """The int32 convolution of x and w minus their zero points; padding equals the zero point.

    w_zero: one number, or one per output channel. bias: int32, one per output channel.
    """
    group = call.attr("group", 1)
    weights = w.extents
    data = factor(f, x, _scalar(f, x_zero))
    taps = factor(f, w, _channels(f, _scalar(f, w_zero), len(weights)), int8)
    pads = (*shape.begin, *shape.end)
    inside = data.value
    if data.offset is not None and any(pads):
        axes = f.constant(range(2, len(weights)), int64)
        inside = f.op("Pad", inside, f.constant(pads, int64), data.zero, axes)
        pads = (0,) * len(pads)
    steps = {
        "strides": shape.strides,
        "dilations": shape.dilations,
        "pads": pads,
        "group": group,
    }
    product = f.op("ConvInteger", inside, taps.value, **steps)

    def window_sums() -> Value:
        ones = f.constant(1, int8)
        each = f.op("Expand", ones, f.ints(group, *weights[1:]))
        sums = f.op("ConvInteger", inside, each, **steps)
        return _repeated(f, sums, weights[0])

    def tap_sums() -> Value:
        found = total(f, taps.value, list(range(1, len(weights))), True)
        ones = [1] * (len(weights) - 2)
        return f.reshape(found, -1, *ones)

    more = _channels(f, bias, len(weights))
    sums = window_sums, tap_sums
    return corrected(f, product, data, taps, math.prod(weights[1:]), sums, more)


def _channels(
    f: Fragment,
    x: Value | None,
    rank: int,
) -> Value | None:
    """A parameter per output channel, shaped to broadcast with feature maps."""
    if x is None or not x.extents:
        return x
    return shaped(f, x, (-1, *[1] * (rank - 2)))


def _repeated(f: Fragment, x: Value, channels: int) -> Value:
    """Feature maps with one channel per group, repeated for each channel of the group."""
    n, groups, *rest = x.extents
    if groups == 1:
        return x
    column = f.unsqueeze(x, 2)
    shape = f.ints(n, groups, channels // groups, *rest)
    repeated = f.op("Expand", column, shape)
    return f.reshape(repeated, n, channels, *rest)


register(
    OpDef(
        "ConvInteger",
        lambda call: [(int32, _conv_shape(call, 0, 1))],
        since=10,
        compute=_convolution,
        decompose=_conv_parts,
        flops=_conv_flops(0, 1),
        traits=SPATIAL,
    )
)


def _qlinear_conv_type(call: OpCall) -> Sequence[Type]:
    return [(call.dtype(7), _conv_shape(call, 0, 3))]


def _qlinear_conv(call: OpCall, f: Fragment) -> Sequence[Value] | None:
    """inputs: x, its scale and zero point, w, its scale and zero point, the result's, the bias."""
    if not _in_bytes(call):
        return None
    operands = [call.value(n) for n in range(8)]
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = operands
    found = _convolved(
        call,
        f,
        x,
        w,
        x_zero,
        w_zero,
        _windows(call, 0, 3),
        _optional(call, 8),
    )
    given = (x_scale, w_scale, y_scale)
    scales = [_channels(f, _scalar(f, v), call.rank(0)) for v in given]
    first, second, last = (v for v in scales if v is not None)
    zero = _scalar(f, y_zero)
    assert zero is not None
    return [requantized(f, found, first, second, last, zero)]


register(
    OpDef(
        "QLinearConv",
        _qlinear_conv_type,
        since=10,
        decompose=_qlinear_conv,
        flops=_conv_flops(0, 3),
        traits=SPATIAL,
    )
)


# -------------------------------------------------------------------------- unsigned by signed


def on_unsigned(call: OpCall, f: Fragment) -> Value:
    """A native product or convolution of int8 as one of uint8, with the zero point 128."""
    data = moved(f, call.value(0), uint8)
    zero = f.constant(HALF, uint8)
    weights = call.value(1)
    if call.operation.qualified == "MatMulInteger":
        return _multiplied(f, data, weights, zero, None)
    windows = _windows(call, 0, 1)
    return _convolved(call, f, data, weights, zero, None, windows)
