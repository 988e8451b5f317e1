"""Convolutions: one Computation with guarded reads, and a map that adds the bias.

Floats narrower than float32 accumulate in float32.
"""

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
from tilewright.graph.ops.broadcasting import wide, wide_dtype, widened
from tilewright.graph.ops.conv_gradient import ConvolutionTaps, conv_gradient
from tilewright.graph.ops.derivative import Backward
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register
from tilewright.graph.ops.traits import SPATIAL
from tilewright.graph.ops.windows import Windows, windows

Buffers = Sequence[Buffer]


def geometry(
    call: OpCall,
    x: tuple[int, ...],
    w: tuple[int, ...],
) -> Windows:
    """The windows of a Conv with weights of shape w over an input of shape x. Raises ModelError."""
    group = call.attr("group", 1)
    if len(x) != len(w) or len(x) < 2:
        raise call.error(f"the input {list(x)} and weights {list(w)} differ in rank")
    if group < 1 or w[0] % group:
        raise call.error(f"group={group} does not divide the {w[0]} output channels")
    if x[1] != w[1] * group:
        raise call.error(
            f"the input {list(x)} has {x[1]} channels, but the weights {list(w)} with "
            f"group={group} take {w[1] * group}"
        )
    asked = call.attr("kernel_shape")
    if asked and tuple(asked) != w[2:]:
        raise call.error(
            f"kernel_shape {asked} differs from that of the weights, {list(w[2:])}"
        )
    return windows(call, x[2:], w[2:])


def _geometry(call: OpCall) -> Windows:
    return geometry(call, call.shape(0), call.shape(1))


def _type(call: OpCall) -> Sequence[Type]:
    return call.result((call.shape(0)[0], call.shape(1)[0], *_geometry(call).outputs))


def convolution(
    name: str,
    out: Buffer,
    x: Buffer,
    w: Buffer,
    shape: Windows,
    group: int,
) -> Computation:
    """out[n, m, o] = sum over c and k of x[n, c of m's group, window(o, k)] * w[m, c, k]."""
    rank = len(shape.kernel)
    per_group = w.shape[0] // group
    channels = w.shape[1]
    accumulator = wide_dtype(out.dtype)

    def value(*i: Any) -> Expr:
        n, m, *rest = i
        o = rest[:rank]
        c = rest[rank]
        k = rest[rank + 1 :]
        window = tuple(
            const(0) if e == 1 else v for v, e in zip(k, shape.kernel, strict=True)
        )
        place = shape.place(o, window)
        channel = _channel(m, c, group, per_group, channels)
        weight = w[(m, c if channels > 1 else const(0), *window)]
        data = shape.read(x, (n, channel), place, 0)
        return cast(data, accumulator) * cast(weight, accumulator)

    return reduce_(name, out, (channels, *shape.kernel), "add", value)


def _channel(
    m: Any,
    c: Any,
    group: int,
    per_group: int,
    channels: int,
) -> Any:
    if group == 1:
        return c if channels > 1 else const(0)
    first = m if per_group == 1 else m // per_group
    return first if channels == 1 else first * channels + c


def _conv(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    x = inputs[0]
    w = inputs[1]
    out = outputs[0]
    shape = _geometry(call)
    group = call.attr("group", 1)
    if not call.has(2):
        return [convolution(call.name, out, x, w, shape, group)]
    bias = inputs[2]
    total = Buffer(f"{call.name}_sum", out.shape, wide_dtype(out.dtype))
    return [
        convolution(call.name, total, x, w, shape, group),
        with_bias(call, out, total, bias),
    ]


def with_bias(
    call: OpCall,
    out: Buffer,
    total: Buffer,
    bias: Buffer,
) -> Computation:
    """out = total + bias, one number per channel (axis 1)."""

    def biased(*i: Any) -> Expr:
        return cast(total[i] + wide(bias[i[1]]), out.dtype)

    return map_(f"{call.name}_bias", out, biased)


# For an image and weights that are narrower floats: float32 for the bias, the sum and the result.
MIXED = "MixedConv"


def _mixed_type(call: OpCall) -> Sequence[Type]:
    return [(float32, shape) for _, shape in _type(call)]


def _mixed_arrays(
    call: OpCall,
    x: Array,
    w: Array,
    b: Array | None = None,
) -> list[Array] | None:
    return _arrays(call, x.astype(np.float32), w.astype(np.float32), b)


def _flops(call: OpCall) -> int:
    return 2 * call.size_out(0) * math.prod(call.shape(1)[1:])


def _arrays(
    call: OpCall,
    x: Array,
    w: Array,
    b: Array | None = None,
) -> list[Array] | None:
    """NumPy: one product per window position, fast enough to check whole networks."""
    group = call.attr("group", 1)
    shape = windows(call, x.shape[2:], w.shape[2:])
    found = correlate(widened(x), widened(w), shape, group)
    if b is not None:
        found = found + column(call, b, w.shape[0], x.ndim)
    return [found.astype(x.dtype)]


def column(call: OpCall, bias: Array, channels: int, rank: int) -> Array:
    """The bias as an array of the given rank, with one number per channel (axis 1).

    Raises ModelError for any other number of elements: NumPy would repeat a single one.
    """
    if bias.shape != (channels,):
        raise call.error(f"the bias is {list(bias.shape)}, of {channels} channels")
    return widened(bias).reshape(1, channels, *(1,) * (rank - 2))


def correlate(
    x: Array,
    w: Array,
    shape: Windows,
    group: int,
) -> Array:
    """The convolution of arrays in their own dtype, without bias."""
    pads = [(max(b, 0), max(e, 0)) for b, e in zip(shape.begin, shape.end, strict=True)]
    x = x[:, :, *(slice(max(-b, 0), None) for b in shape.begin)]
    spans = [
        (o - 1) * s + (k - 1) * d + 1
        for o, s, k, d in zip(
            shape.outputs, shape.strides, shape.kernel, shape.dilations, strict=True
        )
    ]
    extra = [
        (low, max(high, span - n - low))
        for (low, high), span, n in zip(pads, spans, x.shape[2:], strict=True)
    ]
    padded = np.pad(x, [(0, 0), (0, 0), *extra])
    batch = x.shape[0]
    per_group = w.shape[0] // group
    data_shape = (batch, group, w.shape[1])
    out = np.zeros(
        (batch, group, per_group, *shape.outputs),
        np.result_type(x, w),
    )
    weights = w.reshape(group, per_group, w.shape[1], *shape.kernel)
    for k in np.ndindex(*shape.kernel):
        cut = tuple(
            slice(i * d, i * d + (o - 1) * s + 1, s)
            for i, d, o, s in zip(
                k, shape.dilations, shape.outputs, shape.strides, strict=True
            )
        )
        part = padded[(slice(None), slice(None), *cut)].reshape(
            *data_shape, *shape.outputs
        )
        flat = part.reshape(*data_shape, math.prod(shape.outputs))
        product = np.matmul(weights[(..., *k)], flat)
        out += product.reshape(out.shape)
    found: Array = out.reshape(batch, w.shape[0], *shape.outputs)
    return found


def _gradient(
    f: Fragment,
    call: Backward,
    x: Sequence[Value],
    y: Value,
    g: Value,
) -> Sequence[Value | None]:
    shape = _geometry(call)
    group = call.attr("group", 1)
    return conv_gradient(
        f, call, ConvolutionTaps(shape.strides, shape.dilations, shape.begin, group), g
    )


register(
    OpDef(
        "Conv",
        _type,
        compute=_conv,
        reference=_arrays,
        flops=_flops,
        traits=SPATIAL,
        gradient=_gradient,
    )
)
register(
    OpDef(
        MIXED,
        _mixed_type,
        "tilewright",
        compute=_conv,
        reference=_mixed_arrays,
        flops=_flops,
        traits=SPATIAL,
    )
)
