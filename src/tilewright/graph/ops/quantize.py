"""QuantizeLinear, DequantizeLinear, DynamicQuantizeLinear for every storage type.

A value rounds to nearest, ties to even, before the zero point is added (ONNX, QuantizeLinear).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.dtypes import DType, dtype_of, float32, int32, uint8
from tilewright.compute.build import cast, map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr, Max, Min, Select, call, const
from tilewright.graph.ops.broadcasting import replaced
from tilewright.graph.ops.casts import converted, dtype_attribute
from tilewright.graph.ops.dtype_numbers import ONNX_DTYPES
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register
from tilewright.graph.ops.traits import DEQUANTIZES

Buffers = Sequence[Buffer]


def only(call_: OpCall, inputs: Buffers, i: int) -> Expr:
    """The only element of input `i`, as a constant if it is known."""
    known = call_.constant(i)
    if known is not None:
        return const(known.reshape(-1)[0], inputs[i].dtype)
    return inputs[i][(0,) * len(inputs[i].shape)]


def quantized(
    x: Expr,
    zero: Expr | None,
    target: DType,
) -> Expr:
    """Round `x` (already divided by the scale) to the integer type `target` with zero point `zero`.

    A cast saturates.
    """
    x = call("round_even", cast(x, float32))
    if zero is not None and zero is not const(0, zero.dtype):
        x = x + cast(zero, float32)
    return cast(x, target)


def _parameter(
    call_: OpCall,
    inputs: Buffers,
    i: int,
    point: Sequence[Any],
) -> Expr:
    """The scale or zero point (input `i`) of the element at `point`: one, per axis or per block."""
    if inputs[i].size == 1:
        return only(call_, inputs, i)
    axis = call_.own_axis(len(point), 1)
    block = call_.attr("block_size", 0)
    if not block:
        return inputs[i][point[axis]]
    return inputs[i][tuple(p // block if n == axis else p for n, p in enumerate(point))]


def _check(call_: OpCall) -> None:
    """Raise ModelError if the scale or zero point does not fit the tensor."""
    shape = call_.shape(0)
    for i in (1, 2):
        if not call_.has(i) or call_.size(i) == 1:
            continue
        given = call_.shape(i)
        axis = call_.own_axis(len(shape), 1)
        block = call_.attr("block_size", 0)
        want: tuple[int, ...] = (shape[axis],)
        if block:
            want = replaced(shape, axis, -(-shape[axis] // block))
        if given != want:
            raise call_.error(
                f"input {i} is {list(given)}, {list(want)} fits {list(shape)}"
            )
    if call_.has(2) and call_.size(2) not in (1, call_.size(1)):
        raise call_.error(
            f"the zero point is {list(call_.shape(2))} where the scale is {list(call_.shape(1))}: "
            "give one number, or as many as there are scales"
        )


def _quantized_type(call_: OpCall) -> Sequence[Type]:
    _check(call_)
    number = call_.attr("output_dtype", 0)
    chosen = dtype_of(ONNX_DTYPES[number]) if number else None
    if call_.has(2):
        dtype = call_.dtype(2)
    else:
        dtype = chosen or uint8
    return [(dtype, call_.shape(0))]


def _ratio_dtype(call_: OpCall) -> DType:
    """The dtype of the division by the scale; for a scale that is a power of two, the input's."""
    if call_.attr("precision", 0):
        return dtype_attribute(call_, "precision")
    scale = call_.dtype(1)
    if scale.is_float and scale.name != "float8_e8m0fnu":
        return scale
    if call_.dtype(0).is_float:
        return call_.dtype(0)
    return float32


def _quantize(
    call_: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    x = inputs[0]
    out = outputs[0]
    precision = _ratio_dtype(call_)

    def value(*i: Any) -> Expr:
        scale = cast(_parameter(call_, inputs, 1, i), precision)
        ratio = cast(x[i], precision)
        ratio = ratio if scale is const(1, precision) else ratio / scale
        if call_.has(2):
            zero = _parameter(call_, inputs, 2, i)
        else:
            zero = None
        if out.dtype.is_int:
            return quantized(ratio, zero, out.dtype)
        if out.dtype.bits < 8 and zero is not None:
            ratio = cast(ratio, float32) + cast(zero, float32)
        saturate = out.dtype.bits < 8 or bool(call_.attr("saturate", 1))
        return converted(ratio, out.dtype, saturate)

    return [map_(call_.name, out, value)]


register(
    OpDef(
        "QuantizeLinear",
        _quantized_type,
        since=10,
        compute=_quantize,
        flops=lambda call_: 2 * call_.size(0),
    )
)


def _real_type(call_: OpCall) -> Sequence[Type]:
    _check(call_)
    return [(_real_dtype(call_), call_.shape(0))]


def _real_dtype(call_: OpCall) -> DType:
    number = call_.attr("output_dtype", 0)
    if number:
        return dtype_of(ONNX_DTYPES[number])
    return call_.dtype(1)


def _dequantize(
    call_: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    x = inputs[0]
    out = outputs[0]
    if x.dtype.is_int and x.dtype.bits > 16:
        exact = int32
    else:
        exact = float32

    def value(*i: Any) -> Expr:
        v = cast(x[i], exact)
        if call_.has(2) and x.dtype.is_int:
            v = v - cast(_parameter(call_, inputs, 2, i), exact)
        scaled = cast(v, float32) * cast(_parameter(call_, inputs, 1, i), float32)
        return cast(scaled, out.dtype)

    return [map_(call_.name, out, value)]


def _real_arrays(
    call_: OpCall,
    x: Array,
    scale: Array,
    zero: Array | None = None,
) -> Any:
    """`_dequantize` in NumPy, for integers with one scale or scales along an axis."""
    if x.dtype.kind not in "iu" or scale.ndim > 1 or call_.attr("block_size", 0):
        return None
    shape = [1] * x.ndim
    if scale.size > 1:
        shape[call_.own_axis(x.ndim, 1)] = -1
    exact = np.int32 if x.dtype.itemsize > 2 else np.float32
    point = np.zeros(1) if zero is None else zero
    whole = x.astype(exact) - point.astype(exact).reshape(shape)
    scaled = whole.astype(np.float32) * scale.astype(np.float32).reshape(shape)
    return [scaled.astype(_real_dtype(call_).numpy)]


register(
    OpDef(
        "DequantizeLinear",
        _real_type,
        since=10,
        compute=_dequantize,
        reference=_real_arrays,
        flops=lambda call_: 2 * call_.size(0),
        traits=DEQUANTIZES,
    )
)


def _dynamic(
    call_: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation] | None:
    """Compute the range, which always includes 0, then scale and zero point, then the elements."""
    x = inputs[0]
    if x.size == 0:
        return None
    name = call_.name
    high, low = (Buffer(f"{name}_{n}", (), float32) for n in ("high", "low"))
    given = [o if call_.wants(n) else None for n, o in enumerate(outputs)]
    scale = (given[1:2] and given[1]) or Buffer(f"{name}_scale", (), float32)
    zero = (given[2:3] and given[2]) or Buffer(f"{name}_zero", (), uint8)
    top = Max(high[()], const(0, float32))
    bottom = Min(low[()], const(0, float32))
    width = top - bottom
    step = Select(width.eq(0), const(1, float32), width) / 255.0
    found = [
        reduce_(f"{name}_high", high, x.shape, "max", lambda *i: x[i]),
        reduce_(f"{name}_low", low, x.shape, "min", lambda *i: x[i]),
        map_(f"{name}_scale", scale, lambda: step),
        map_(f"{name}_zero", zero, lambda: quantized(-bottom / scale[()], None, uint8)),
    ]
    out = given[0]
    if out is not None:
        elements = map_(
            name, out, lambda *i: quantized(x[i] / scale[()], zero[()], uint8)
        )
        found.append(elements)
    return found


register(
    OpDef(
        "DynamicQuantizeLinear",
        lambda call_: [(uint8, call_.shape(0)), (float32, ()), (uint8, ())],
        since=11,
        compute=_dynamic,
        flops=lambda call_: 4 * call_.size(0),
    )
)
