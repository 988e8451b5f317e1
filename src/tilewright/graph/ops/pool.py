"""Pooling: windows with a maximum, a mean or a p-norm, and their global forms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.compute.build import cast, map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.compute.reducer import arg_reducer
from tilewright.expr.nodes import INDEX, Buffer, Expr, FloorDiv, Max, Min, const
from tilewright.expr.nodes import call as apply
from tilewright.graph.ops.broadcasting import wide, wide_dtype, widened
from tilewright.graph.ops.pool_gradient import max_pool_gradient
from tilewright.graph.ops.reduce import mean_of
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register
from tilewright.graph.ops.traits import SELECTS, SPATIAL
from tilewright.graph.ops.windows import Windows, windows

Buffers = Sequence[Buffer]


def _geometry(call: OpCall) -> Windows:
    spatial = call.spatial(0)
    if not spatial:
        raise call.error(f"the input {list(call.lead(0))} has no spatial axes")
    return windows(call, spatial, call.attr("kernel_shape") or ())


def _type(call: OpCall) -> Sequence[Type]:
    """Any batch, as ONNX's inference counts windows that start in the padding at the end."""
    return call.result((*call.lead(0), *_geometry(call).outputs))


def _max_types(call: OpCall) -> Sequence[Type]:
    (dtype, shape), *_ = _type(call)
    return [(dtype, shape), (dtypes.int64, shape)]


def _lowest(dtype: Any) -> Any:
    return -math.inf if dtype.is_float else dtype.min


def _split_point(
    i: Sequence[Any], rank: int
) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """Leading axes, output position, window position."""
    return i[:2], i[2 : 2 + rank], i[2 + rank :]


def _flat_index(
    x: Buffer, lead: Sequence[Any], place: Sequence[Any], column_major: bool
) -> Expr:
    """The flat index of an element of `x`, whose spatial axes are counted in either order."""
    found: Expr = lead[0] * x.shape[1] + lead[1]
    axes = range(len(place))
    for a in reversed(axes) if column_major else axes:
        found = found * x.shape[2 + a] + place[a]
    return found


def _max_pool(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    x = inputs[0]
    out = outputs[0]
    shape = _geometry(call)
    rank = len(shape.kernel)
    lowest = _lowest(x.dtype)

    def value(*i: Any) -> Expr:
        lead, o, k = _split_point(i, rank)
        return wide(shape.read(x, lead, shape.place(o, k), lowest))

    if not call.wants(1):
        return [reduce_(call.name, out, shape.kernel, "max", value)]
    column_major = bool(call.attr("storage_order", 0))

    def value_and_place(*i: Any) -> tuple[Expr, Expr]:
        lead, o, k = _split_point(i, rank)
        place = shape.place(o, k)
        return value(*i), _flat_index(x, lead, place, column_major)

    best = Buffer(f"{call.name}_best", out.shape, wide_dtype(x.dtype))
    reducer = arg_reducer("argmax", best.dtype, INDEX)
    results = (best, outputs[1])
    return [
        reduce_(call.name, results, shape.kernel, reducer, value_and_place),
        map_(f"{call.name}_value", out, lambda *i: cast(best[i], out.dtype)),
    ]


def _window_arrays(
    call: OpCall,
    x: Array,
    outside: float,
) -> tuple[Array, Windows]:
    """The elements under each window as trailing axes."""
    shape = windows(
        call,
        x.shape[2:],
        call.attr("kernel_shape") or (),
    )
    pads = zip(shape.begin, shape.end, strict=True)
    padded = np.pad(x, [(0, 0), (0, 0), *pads], constant_values=outside)
    return _under_windows(padded, shape, outside), shape


def _max_arrays(call: OpCall, x: Array) -> list[Array] | None:
    if call.wants(1):
        return None
    if x.dtype.kind not in "iu":
        lowest = -math.inf
    else:
        lowest = np.iinfo(x.dtype).min
    view, shape = _window_arrays(call, widened(x), lowest)
    axes = tuple(range(-len(shape.kernel), 0))
    return [np.max(view, axes).astype(x.dtype)]


def _window_flops(call: OpCall) -> int:
    return call.size_out(0) * math.prod(_geometry(call).kernel)


register(
    OpDef(
        "MaxPool",
        _max_types,
        compute=_max_pool,
        reference=_max_arrays,
        flops=_window_flops,
        traits=SPATIAL | SELECTS,
        gradient=max_pool_gradient,
    )
)


def _under_windows(padded: Array, shape: Windows, outside: float) -> Array:
    """The elements under each window of an array that is already padded."""
    spans = []
    missing = []
    steps = []
    for axis, count in enumerate(shape.outputs):
        span = (shape.kernel[axis] - 1) * shape.dilations[axis] + 1
        last = (count - 1) * shape.strides[axis]
        spans.append(span)
        missing.append((0, max(0, last + span - padded.shape[2 + axis])))
        steps.append(slice(0, last + 1, shape.strides[axis]))
    grown = np.pad(padded, [(0, 0), (0, 0), *missing], constant_values=outside)
    spatial = tuple(range(2, grown.ndim))
    view = np.lib.stride_tricks.sliding_window_view(grown, spans, spatial)
    taps = [slice(None, None, d) for d in shape.dilations]
    found: Array = view[(slice(None), slice(None), *steps, *taps)]
    return found


def _covered(
    shape: Windows,
    n: int,
    o: Any,
    include_pad: bool,
) -> Expr:
    """How many window positions of axis n are inside the input (or its padding) at `o`."""
    kernel = shape.kernel[n]
    d = shape.dilations[n]
    begin = shape.begin[n]
    start = o * shape.strides[n] - begin
    low = 0
    high = shape.inputs[n]
    if include_pad:
        low = -begin
        high += shape.end[n]
    first = Max(
        const(0),
        FloorDiv(const(low + d - 1) - start, const(d)),
    )
    last = Min(
        const(kernel),
        FloorDiv(const(high + d - 1) - start, const(d)),
    )
    span = (kernel - 1) * d + 1
    if max(begin, shape.end[n]) < span:
        return last - first
    return Max(const(0), last - first)  # some windows lie entirely in the padding


def _divisor(
    shape: Windows,
    o: Sequence[Any],
    include_pad: bool,
    dtype: DType,
) -> Expr | int:
    """Elements per window: a number if it is the same for all, else an expression of `dtype`.

    Each axis is converted separately, so that a row's count is not a vector.
    """
    fixed = 1
    varying: Expr | None = None
    for n, at in enumerate(o):
        reach = (shape.outputs[n] - 1) * shape.strides[n] - shape.begin[n]
        reach += (shape.kernel[n] - 1) * shape.dilations[n]
        limit = shape.inputs[n] + (shape.end[n] if include_pad else 0)
        if reach < limit and (include_pad or shape.begin[n] <= 0):
            fixed *= shape.kernel[n]
        else:
            count = cast(_covered(shape, n, at, include_pad), dtype)
            varying = count if varying is None else varying * count
    return fixed if varying is None else varying * fixed


def _average_pool(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    x = inputs[0]
    out = outputs[0]
    shape = _geometry(call)
    rank = len(shape.kernel)
    total = Buffer(f"{call.name}_sum", out.shape, wide_dtype(x.dtype))
    include = bool(call.attr("count_include_pad", 0))

    def value(*i: Any) -> Expr:
        lead, o, k = _split_point(i, rank)
        return wide(shape.read(x, lead, shape.place(o, k), 0))

    def mean(*i: Any) -> Expr:
        divisor = _divisor(shape, i[2:], include, total.dtype)
        return cast(total[i] / divisor, out.dtype)

    return [
        reduce_(f"{call.name}_sum", total, shape.kernel, "add", value),
        map_(call.name, out, mean),
    ]


def _average_arrays(call: OpCall, x: Array) -> list[Array]:
    view, shape = _window_arrays(call, widened(x), 0)
    axes = tuple(range(-len(shape.kernel), 0))
    ones = np.ones((1, 1, *shape.inputs))
    if call.attr("count_include_pad", 0):
        edges = zip(shape.begin, shape.end, strict=True)
        padded = np.pad(ones, [(0, 0), (0, 0), *edges], constant_values=1)
        counted = _under_windows(padded, shape, 0)
    else:
        counted, _ = _window_arrays(call, ones, 0)
    mean = np.sum(view, axes) / np.sum(counted, axes)
    return [mean.astype(x.dtype)]


register(
    OpDef(
        "AveragePool",
        _type,
        compute=_average_pool,
        reference=_average_arrays,
        flops=_window_flops,
        traits=SPATIAL,
    )
)


def _lp_pool(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    x = inputs[0]
    out = outputs[0]
    shape = _geometry(call)
    rank = len(shape.kernel)
    p = call.attr("p", 2)
    total = Buffer(f"{call.name}_sum", out.shape, wide_dtype(x.dtype))

    def value(*i: Any) -> Expr:
        lead, o, k = _split_point(i, rank)
        element = shape.read(x, lead, shape.place(o, k), 0)
        return power(wide(element), p)

    return [
        reduce_(f"{call.name}_sum", total, shape.kernel, "add", value),
        map_(call.name, out, lambda *i: cast(root(total[i], p), out.dtype)),
    ]


def power(x: Expr, p: float) -> Expr:
    """|x| ** p; p is an integer since version 2."""
    if p == 1:
        return apply("abs", x)
    if p == 2:
        return x * x
    return apply("pow", apply("abs", x), const(p, x.dtype))


def root(x: Expr, p: float) -> Expr:
    """x ** (1 / p) of a sum of powers."""
    if p == 1:
        return x
    if p == 2:
        return apply("sqrt", x)
    return apply("pow", x, const(1 / p, x.dtype))


register(OpDef("LpPool", _type, compute=_lp_pool, flops=_window_flops, traits=SPATIAL))


def _global_type(call: OpCall) -> Sequence[Type]:
    x = call.shape(0)
    return call.result((*x[:2], *(1,) * (len(x) - 2)))


def _global(op: str) -> Any:
    """op: "max", "mean" or "lp"."""

    def compute(
        call: OpCall,
        inputs: Buffers,
        outputs: Buffers,
    ) -> list[Computation]:
        x = inputs[0]
        out = outputs[0]
        over = x.shape[2:]
        rank = len(x.shape)
        p = call.attr("p", 2)

        def value(*i: Any) -> Expr:
            found = wide(x[(*i[:2], *i[rank:])])
            return power(found, p) if op == "lp" else found

        if op == "max":
            return [reduce_(call.name, out, over, "max", value)]
        total = Buffer(f"{call.name}_sum", out.shape, wide_dtype(x.dtype))

        def result(*i: Any) -> Expr:
            if op == "lp":
                found = root(total[i], p)
            else:
                found = total[i] / math.prod(over)
            return cast(found, out.dtype)

        return [
            reduce_(f"{call.name}_sum", total, over, "add", value),
            map_(call.name, out, result),
        ]

    return compute


def _global_arrays(f: Any) -> Any:
    def reference(call: OpCall, x: Array) -> list[Array]:
        found = f(widened(x), tuple(range(2, x.ndim)))
        return [np.asarray(found).astype(x.dtype)]

    return reference


for _name, _op, _f, _traits in (
    ("GlobalMaxPool", "max", partial(np.max, keepdims=True), SPATIAL | SELECTS),
    ("GlobalAveragePool", "mean", mean_of, SPATIAL),
    ("GlobalLpPool", "lp", None, SPATIAL),
):
    register(
        OpDef(
            _name,
            _global_type,
            compute=_global(_op),
            reference=None if _f is None else _global_arrays(_f),
            flops=lambda call: call.size(0),
            traits=_traits,
        )
    )
