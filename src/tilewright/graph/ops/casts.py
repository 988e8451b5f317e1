"""Changes of element type: Cast, CastLike, BitCast; also Dropout and other inference no-ops."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.base.dtypes import (
    DType,
    bool_,
    dtype_of,
    float8_e8m0fnu,
    float32,
    int32,
    uint8,
    uint32,
)
from tilewright.compute.build import cast, map_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Bitcast, Buffer, Expr, Max, Min, Select, Shr, const
from tilewright.graph.nodes import Value
from tilewright.graph.ops.derivative import Backward
from tilewright.graph.ops.dtype_numbers import ONNX_DTYPES
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register
from tilewright.graph.ops.traits import IMPURE, MIXES_TYPES, POINTWISE

Buffers = Sequence[Buffer]


def dtype_attribute(
    call: OpCall,
    name: str,
    default: DType | None = None,
) -> DType:
    """The dtype that an attribute denotes by number."""
    number = call.attr(name)
    if number is None and default is not None:
        return default
    if number not in ONNX_DTYPES:
        raise call.error(f"{name}={number} is not an element type")
    return dtype_of(ONNX_DTYPES[number])


def _target(call: OpCall) -> DType:
    if call.operation.qualified == "CastLike":
        return call.dtype(1)
    return dtype_attribute(call, "to")


def _saturates(call: OpCall, source: DType, target: DType) -> bool:
    """Whether values out of range become the largest: the default for narrow floats."""
    narrow = target.is_float and target.bits <= 8
    return narrow and not source.is_int and bool(call.attr("saturate", 1))


def converted(x: Expr, target: DType, saturate: bool) -> Expr:
    """`x` in another dtype, clamped to its range first if it saturates."""
    if target.is_int and target.is_sub_byte and x.dtype.is_float:
        x = cast(x, int32)  # narrow integers wrap around, wide ones saturate
    if saturate:
        x = cast(x, float32)
        x = Max(
            Min(x, const(target.max, float32)),
            const(target.min, float32),
        )
    return cast(x, target)


def _cast(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation] | None:
    x = inputs[0]
    out = outputs[0]
    if out.dtype is float8_e8m0fnu:
        mode = str(call.attr("round_mode", "up"))
        saturate = bool(call.attr("saturate", 1))
        return [map_(call.name, out, lambda *i: _power_of_two(x[i], mode, saturate))]
    clamp = _saturates(call, x.dtype, out.dtype)
    return [map_(call.name, out, lambda *i: converted(x[i], out.dtype, clamp))]


def _power_of_two(x: Expr, mode: str, saturate: bool) -> Expr:
    """|x| as float8_e8m0fnu, which holds only an exponent. mode: nearest, up or down."""
    bits = Bitcast(cast(x, float32), uint32)
    exponent = Shr(bits, const(23, uint32)) & 0xFF
    fraction = bits & 0x7FFFFF
    # To nearest, half rounds up unless the exponent is the least (as in ONNX's reference).
    limit = {"up": 0, "nearest": 0x3FFFFF, "down": 0x7FFFFF}[mode]
    up = fraction > limit
    if mode == "nearest":
        up = up & ((fraction > 0x400000) | (exponent > 0))
    up = up & (exponent < (0xFE if saturate else 0xFF))
    code = cast(exponent + Select(up, const(1, uint32), const(0, uint32)), uint8)
    return Bitcast(code, float8_e8m0fnu)


def _exotic(dtype: DType) -> bool:
    """Types with special conversion rules: narrow ones, complex numbers, strings."""
    narrow = dtype.is_sub_byte or (dtype.is_float and dtype.bits <= 8)
    return narrow or dtype.is_string or dtype.is_complex


def _cast_arrays(call: OpCall, x: Array, *rest: Array) -> list[Array] | None:
    like = call.operation.qualified == "CastLike"
    source = dtype_of(x.dtype)
    if like:
        target = dtype_of(rest[0].dtype)
    else:
        target = _target(call)
    if any(_exotic(t) for t in (source, target)):
        return None
    if target.is_int and source.is_float:
        whole = np.nan_to_num(np.trunc(x.astype(np.float64)), nan=0.0)
        low = float(target.min)
        high = float(target.max)
        inside = np.clip(whole, low, high)
        found = inside.astype(target.numpy)
        return [
            np.where(
                inside >= high,
                np.array(target.max, target.numpy),
                found,
            )
        ]
    return [x.astype(target.numpy)]


for _name, _since, _traits in (
    ("Cast", 6, POINTWISE),
    ("CastLike", 15, POINTWISE | MIXES_TYPES),
):
    register(
        OpDef(
            _name,
            lambda call: [(_target(call), call.shape(0))],
            since=_since,
            compute=_cast,
            reference=_cast_arrays,
            traits=_traits,
        )
    )


def _bitcast_type(call: OpCall) -> Sequence[Type]:
    return [(dtype_attribute(call, "to"), call.shape(0))]


def _bitcast(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation] | None:
    x = inputs[0]
    out = outputs[0]
    if x.dtype.is_bool or out.dtype.is_bool:  # a byte holding 0 or 1
        return [map_(call.name, out, lambda *i: cast(x[i], out.dtype))]
    if x.dtype.bits != out.dtype.bits:
        return None
    return [map_(call.name, out, lambda *i: Bitcast(x[i], out.dtype))]


register(
    OpDef(
        "BitCast",
        _bitcast_type,
        since=26,
        compute=_bitcast,
        traits=POINTWISE,
    )
)


def _dropout_types(call: OpCall) -> Sequence[Type]:
    mask = bool_ if call.version >= 10 else call.dtype(0)
    return [(call.dtype(0), call.shape(0)), (mask, call.shape(0))]


def _trains(call: OpCall) -> bool | None:
    """Whether it drops anything; None if unknown."""
    if call.version < 12 or not call.has(2):
        return False
    training = call.constant(2)
    if training is None:
        return None
    ratio = call.constant(1)
    return bool(training.reshape(-1)[0]) and (
        ratio is None or float(ratio.reshape(-1)[0]) != 0
    )


def _dropout(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation] | None:
    if _trains(call) is not False:
        return None
    x = inputs[0]
    found = [map_(call.name, outputs[0], lambda *i: x[i])]
    if call.wants(1):
        keep = const(1, outputs[1].dtype)
        found.append(map_(f"{call.name}_mask", outputs[1], lambda *i: keep))
    return found


def _dropout_gradient(
    f: Fragment,
    call: Backward,
    x: Sequence[Value],
    y: Value,
    g: Value,
) -> Sequence[Value | None]:
    """Use its mask: drawing again would give other numbers."""
    if _trains(call) is False:
        return [g]
    if not call.wants(1):
        call.refuse(
            "the dropped elements are unknown",
            "export the model with its mask, output 1",
        )
    ratio = f.constant(0.5, float32) if not call.has(1) else call.value(1)
    kept = (1 - f.term(ratio)).op("CastLike", g)
    if _trains(call) is None:
        kept = f.term(call.value(2)).chosen(kept, 1)
    mask = f.term(call.out(1))
    flow = mask.chosen(f.term(g) / kept, 0)
    return [flow.value]


register(
    OpDef(
        "Dropout",
        _dropout_types,
        since=7,
        compute=_dropout,
        by_value=(1, 2),
        traits=IMPURE,
        gradient=_dropout_gradient,
    )
)
