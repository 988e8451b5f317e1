"""Resize and Upsample: one pass of the internal operator Resample per axis that changes.

Resample(x, weights?, first?) resamples one axis: result o is the sum over t of weights[o, t] times
element first(o) + t, clamped to the axis. first(o) is (a * o + b) // d if such a line exists
(attribute `line`), else it is read from a table. Without weights it copies element first(o).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.base.dtypes import DType, bool_, float32, float64, int64
from tilewright.compute.build import map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr, Max, Min, const
from tilewright.graph.nodes import Operation, Value
from tilewright.graph.ops.broadcasting import replaced
from tilewright.graph.ops.dtype_numbers import number_of
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register
from tilewright.graph.ops.resample import (
    ROUNDINGS,
    TRANSFORMATIONS,
    ResampledAxis,
    ResampleFilter,
    as_line,
    coordinates,
    nearest,
    outside,
    taps,
    weighted,
)
from tilewright.graph.ops.resample_tables import COMPUTED
from tilewright.graph.ops.traits import SPATIAL

Buffers = Sequence[Buffer]
DOMAIN = "tilewright"
ANYWHERE = 1 << 40  # a position that is computed may be clamped at both ends
UNROLLED = 8  # most taps that are unrolled; longer filters are a reduction


def _resample_type(call: OpCall) -> Sequence[Type]:
    shape = list(call.shape(0))
    axis = call.attr("axis")
    shape[axis] = call.attr("size")
    return call.result(shape)


def _position(
    call: OpCall,
    inputs: Buffers,
    o: Any,
    tap: Any,
    extent: int,
) -> Expr:
    """The position of a tap's element along an axis of that extent."""
    line = call.attr("line")
    if line is None:
        first: Expr = inputs[2][o]
    else:
        a, b, d = line
        if d == 1:
            first = o * a + b
        else:
            first = (o * a + b) // d
    low, high = call.attr("range")
    if isinstance(tap, int):
        taps = (tap, tap)
    else:
        taps = (0, inputs[1].shape[1] - 1)
    place: Expr = first + tap
    if high + taps[1] >= extent:
        place = Min(place, const(extent - 1))
    if low + taps[0] < 0:
        place = Max(place, const(0))
    return place


def _resample(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    x = inputs[0]
    out = outputs[0]
    axis = call.attr("axis")
    rank = len(out.shape)

    def read(i: Sequence[Any], tap: Any) -> Expr:
        place = _position(
            call,
            inputs,
            i[axis],
            tap,
            x.shape[axis],
        )
        return x[replaced(i, axis, place)]

    if not call.has(1):
        return [map_(call.name, out, lambda *i: read(i, 0))]
    weights = inputs[1]
    taps = weights.shape[1]
    if taps > UNROLLED:
        return [
            reduce_(
                call.name,
                out,
                (taps,),
                "add",
                lambda *i: weights[i[axis], i[-1]] * read(i[:rank], i[-1]),
            )
        ]

    def mixed(*i: Any) -> Expr:
        parts = [weights[i[axis], t] * read(i, t) for t in range(taps)]
        return sum(parts[1:], start=parts[0])

    return [map_(call.name, out, mixed)]


def _resample_arrays(
    call: OpCall,
    x: Array,
    weights: Array | None = None,
    first: Array | None = None,
) -> list[Array]:
    axis = call.attr("axis")
    line = call.attr("line")
    if line is not None:
        a, b, d = line
        first = (a * np.arange(call.attr("size")) + b) // d
    assert first is not None
    taps = 1 if weights is None else weights.shape[1]
    places = np.clip(
        first[:, None] + np.arange(taps),
        0,
        x.shape[axis] - 1,
    )
    taken = np.take(x, places, axis)
    if weights is None:
        return [taken.squeeze(axis + 1)]
    shaped = weights.reshape(weights.shape + (1,) * (x.ndim - axis - 1))
    return [(taken * shaped).sum(axis + 1).astype(x.dtype)]


register(
    OpDef(
        "Resample",
        _resample_type,
        domain=DOMAIN,
        compute=_resample,
        reference=_resample_arrays,
        flops=lambda call: (
            call.size_out(0) * (2 * call.shape(1)[1] if call.has(1) else 0)
        ),
    )
)


def _axes(call: OpCall) -> list[ResampledAxis]:
    """How every axis of input 0 is resized."""
    shape = call.shape(0)
    asked = call.attr("axes")
    if asked is None:
        axes = list(range(len(shape)))
    else:
        axes = [call.axis(a, len(shape)) for a in asked]
    roi = _roi(call, len(axes))
    found = [ResampledAxis(n, n, 1.0) for n in shape]
    if call.arity > 3 and call.has(3):
        sizes = call.ints(3)
    else:
        sizes = None
    if sizes:
        scales = [sizes[n] / max(shape[a], 1) for n, a in enumerate(axes)]
        policy = call.attr("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            scales = [(min if policy == "not_larger" else max)(scales)] * len(axes)
            sizes = [int(s * shape[a] + 0.5) for s, a in zip(scales, axes, strict=True)]
    else:
        scales = _scales(call)
        sizes = [_size(s * shape[a]) for s, a in zip(scales, axes, strict=True)]
    if len(sizes) != len(axes):
        raise call.error(f"{len(sizes)} sizes or scales for {len(axes)} axes")
    for axis, size, scale, window in zip(axes, sizes, scales, roi, strict=True):
        if scale <= 0 and shape[axis]:
            raise call.error(f"a scale of {scale}")
        found[axis] = ResampledAxis(shape[axis], size, scale, window)
    return found


def _size(exact: float) -> int:
    """Rounded to float32 first, as ONNX does: 3 times the float32 that is nearest to 5/3 is 5."""
    return int(exact if exact.is_integer() else np.float32(exact))


def _scales(call: OpCall) -> list[float]:
    if call.operation.qualified == "Upsample" and call.version < 9:
        given = call.attr("scales")
    else:
        given = call.need(2 if call.version >= 11 else 1).reshape(-1)
    scales = [float(s) for s in given]
    if not all(map(math.isfinite, scales)):
        raise call.error(f"scales {scales}")
    return scales


def _roi(call: OpCall, count: int) -> list[tuple[float, float]]:
    if call.attr("coordinate_transformation_mode") != "tf_crop_and_resize":
        return [(0.0, 1.0)] * count
    roi = [float(v) for v in call.need(1).reshape(-1)]
    if len(roi) != 2 * count:
        raise call.error(f"a roi of {len(roi)} numbers for {count} axes")
    return [(roi[n], roi[n + count]) for n in range(count)]


def _type(call: OpCall) -> Sequence[Type]:
    return call.result(a.outputs for a in _axes(call))


def _transformation(call: OpCall) -> str:
    """Before version 11 there was only one transformation, and nearest rounded down."""
    if call.operation.qualified == "Upsample" or call.version < 11:
        return "asymmetric"
    name = str(call.attr("coordinate_transformation_mode", "half_pixel"))
    if name == "tf_half_pixel_for_nn":
        return "half_pixel"
    if name not in TRANSFORMATIONS:
        raise call.error(f"unknown coordinate transformation: {name!r}")
    return name


def _filter(call: OpCall) -> ResampleFilter:
    old = call.operation.qualified == "Upsample" or call.version < 11
    mode = str(call.attr("mode", "nearest"))
    rounding = "floor" if old else str(call.attr("nearest_mode", "round_prefer_floor"))
    if (
        mode not in ("nearest", "linear", "bilinear", "cubic")
        or rounding not in ROUNDINGS
    ):
        raise call.error(f"unknown mode: {mode!r}, {rounding!r}")
    return ResampleFilter(
        "linear" if mode == "bilinear" else mode,
        rounding,
        bool(call.attr("antialias", 0)),
        float(call.attr("cubic_coeff_a", -0.75)),
        bool(call.attr("exclude_outside", 0)),
    )


def _decompose(call: OpCall, f: Fragment) -> list[Value]:
    x = call.value(0)
    source = call.dtype(0)
    how = _filter(call)
    transformation = _transformation(call)
    axes = _axes(call)
    if 0 in (*call.shape(0), *(a.outputs for a in axes)):
        shape = f.ints(*(a.outputs for a in axes))
        return [f.op("ConstantOfShape", shape, value=np.zeros(1, source.numpy))]
    mixes = how.mode != "nearest" or transformation == "tf_crop_and_resize"
    work = (float64 if source is float64 else float32) if mixes else source
    x = _converted(f, x, work)
    for n, axis in enumerate(axes):
        if not axis.idle:
            x = _along(call, f, x, n, axis)
    if work is not source and source.is_int:
        limits = (f.constant(v, work) for v in (source.min, source.max))
        x = f.op("Clip", f.op("Round", x), *limits)
    if f.operations:
        return [_converted(f, x, source)]
    return [f.op("Identity", x)]


def _converted(f: Fragment, x: Value, dtype: DType) -> Value:
    if x.dtype is dtype:
        return x
    number = number_of(dtype.name)
    return f.op("Cast", x, to=number)


def _along(
    call: OpCall,
    f: Fragment,
    x: Value,
    n: int,
    axis: ResampledAxis,
) -> Value:
    """`x` resized along its axis `n`."""
    if n in call.attr("computed", ()):
        return _computed(call, f, x, n, axis)
    how = _filter(call)
    transformation = _transformation(call)
    # Positions, their rounded values, and per tap its distance and weight.
    call.table((8 + 6 * taps(axis, how)) * axis.outputs, f"the tables of axis {n}")
    place = coordinates(axis, transformation)
    weights: Value | None = None
    if how.mode == "nearest":
        first = nearest(place, how.rounding)
    else:
        first, table = weighted(axis, place, how)
        weights = f.constant(table, x.dtype)
    line = as_line(first)
    found = f.ops(
        "Resample",
        x,
        weights,
        f.constant(first, int64) if line is None else None,
        domain=DOMAIN,
        version=1,
        axis=n,
        size=axis.outputs,
        line=line,
        range=(int(first.min()), int(first.max())),
    )[0]
    missed = outside(axis, place) if transformation == "tf_crop_and_resize" else None
    if missed is None:
        return found
    mask = missed.reshape(-1, *(1,) * (len(x.extents) - n - 1))
    value = f.constant(call.attr("extrapolation_value", 0.0), x.dtype)
    return f.op("Where", f.constant(mask, bool_), value, found)


def can_compute(operation: Operation, known: Mapping[Value, Array]) -> bool:
    """Whether positions can be computed when the model runs (attribute `computed`: the axes).

    requires: both extents decide them, as they do if sizes are given, or scales that are whole
    numbers. known: the constants.
    """
    call = OpCall(operation, known)
    if operation.qualified != "Resize" or call.version < 11:
        return False
    how = _filter(call)
    policy = call.attr("keep_aspect_ratio_policy", "stretch")
    plain = not how.antialias and not how.exclude_outside and policy == "stretch"
    if not plain or _transformation(call) not in COMPUTED:
        return False
    if call.has(3):
        return True
    whole = call.constant(2) is not None
    return whole and all(s.is_integer() for s in _scales(call))


def _computed(
    call: OpCall, f: Fragment, x: Value, n: int, axis: ResampledAxis
) -> Value:
    """`x` resized along its axis `n`, with positions that are computed when the model runs."""
    how = _filter(call)
    taken: dict[str, Any] = {
        "domain": DOMAIN,
        "version": 1,
        "axis": n,
        "size": axis.outputs,
    }
    asked: dict[str, Any] = {
        "transformation": _transformation(call),
        "mode": how.mode,
        "rounding": how.rounding,
        "cubic": how.cubic,
    }
    first = f.op("ResamplePlaces", x, **taken, **asked)
    weights: Value | None = None
    if how.mode != "nearest":
        weights = f.op("ResampleWeights", x, **taken, **asked)
    anywhere = (-ANYWHERE, ANYWHERE)
    return f.op("Resample", x, weights, first, **taken, line=None, range=anywhere)


for _name, _since, _until in (("Resize", 10, None), ("Upsample", 7, 9)):
    register(
        OpDef(
            _name,
            _type,
            since=_since,
            until=_until,
            decompose=_decompose,
            traits=SPATIAL,
        )
    )
