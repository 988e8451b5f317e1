"""Pooling: windows with a maximum, a mean or a p-norm, and their global forms."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    """Of any batch: ONNX's inference counts windows that start in the padding behind the input."""
    return [(call.dtype(0), (*call.lead(0), *_geometry(call).outputs))]


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


def _max_pool(call: OpCall, inputs: Buffers, outputs: Buffers) -> list[Computation]:
    x, out, shape = inputs[0], outputs[0], _geometry(call)
    rank, lowest = len(shape.kernel), _lowest(x.dtype)

    def value(*i: Any) -> Expr:
        lead, o, k = _split_point(i, rank)
        return wide(shape.read(x, lead, shape.place(o, k), lowest))

    if not call.wants(1):
        return [reduce_(call.name, out, shape.kernel, "max", value)]
    order = range(rank)[::-1] if call.attr("storage_order", 0) else range(rank)

    def flat(*i: Any) -> Expr:
        lead, o, k = _split_point(i, rank)
        found: Expr = lead[0] * x.shape[1] + lead[1]
        place = shape.place(o, k)
        for a in order:
            found = found * x.shape[2 + a] + place[a]
        return found

    best = Buffer(f"{call.name}_best", out.shape, wide_dtype(x.dtype))
    reducer = arg_reducer("argmax", best.dtype, INDEX)
    return [
        reduce_(
            call.name,
            (best, outputs[1]),
            shape.kernel,
            reducer,
            lambda *i: (value(*i), flat(*i)),
        ),
        map_(f"{call.name}_value", out, lambda *i: cast(best[i], out.dtype)),
    ]


def _window_arrays(call: OpCall, x: Array, outside: float) -> tuple[Array, Windows]:
    """The elements under each window as trailing axes."""
    shape = windows(call, x.shape[2:], call.attr("kernel_shape") or ())
    spans = [
        (o - 1) * s + (k - 1) * d + 1
        for o, s, k, d in zip(
            shape.outputs, shape.strides, shape.kernel, shape.dilations, strict=True
        )
    ]
    pads = [
        (b, max(e, span - n - b))
        for b, e, span, n in zip(
            shape.begin, shape.end, spans, shape.inputs, strict=True
        )
    ]
    padded = np.pad(x, [(0, 0), (0, 0), *pads], constant_values=outside)
    view = np.lib.stride_tricks.sliding_window_view(
        padded,
        [(k - 1) * d + 1 for k, d in zip(shape.kernel, shape.dilations, strict=True)],
        tuple(range(2, x.ndim)),
    )
    steps = [slice(0, (o - 1) * s + 1, s) for o, s in zip(shape.outputs, shape.strides)]
    taps = [slice(None, None, d) for d in shape.dilations]
    return view[(slice(None), slice(None), *steps, *taps)], shape


def _max_arrays(call: OpCall, x: Array) -> list[Array] | None:
    if call.wants(1):
        return None
    lowest = -math.inf if x.dtype.kind not in "iu" else np.iinfo(x.dtype).min
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
    )
)


def _covered(shape: Windows, n: int, o: Any, include_pad: bool) -> Expr:
    """How many window positions of axis n lie inside the input (or its padding) at `o`."""
    d = shape.dilations[n]
    start = o * shape.strides[n] - shape.begin[n]
    low, high = (
        (-shape.begin[n], shape.inputs[n] + shape.end[n])
        if include_pad
        else (0, shape.inputs[n])
    )
    first = Max(const(0), FloorDiv(const(low + d - 1) - start, const(d)))
    last = Min(const(shape.kernel[n]), FloorDiv(const(high + d - 1) - start, const(d)))
    span = (shape.kernel[n] - 1) * d + 1
    if max(shape.begin[n], shape.end[n]) < span:
        return last - first
    return Max(const(0), last - first)  # some windows lie in the padding as a whole


def _divisor(
    shape: Windows, o: Sequence[Any], include_pad: bool, dtype: DType
) -> Expr | int:
    """Elements per window: a number where it is the same for all, else an expression of `dtype`.

    Each axis is converted by itself, so that a row's count is not a vector of them.
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


def _average_pool(call: OpCall, inputs: Buffers, outputs: Buffers) -> list[Computation]:
    x, out, shape = inputs[0], outputs[0], _geometry(call)
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
    if call.attr("count_include_pad", 0):
        grown = [
            n + b + e
            for n, b, e in zip(shape.inputs, shape.begin, shape.end, strict=True)
        ]
        inside = np.zeros((1, 1, *shape.inputs))
        edges = [(b, e) for b, e in zip(shape.begin, shape.end, strict=True)]
        inside = np.pad(inside + 1, [(0, 0), (0, 0), *edges], constant_values=1)
        assert inside.shape[2:] == tuple(grown)
        counts = _counts(inside, shape)
    else:
        counts, _ = _window_arrays(call, np.ones((1, 1, *shape.inputs)), 0)
        counts = np.sum(counts, axes)
    return [(np.sum(view, axes) / counts).astype(x.dtype)]


def _counts(inside: Array, shape: Windows) -> Array:
    """Ones under each window of an array that has its padding already."""
    spans = [
        (k - 1) * d + 1 for k, d in zip(shape.kernel, shape.dilations, strict=True)
    ]
    ends = [
        max(0, (o - 1) * s + span - n)
        for o, s, span, n in zip(
            shape.outputs, shape.strides, spans, inside.shape[2:], strict=True
        )
    ]
    grown = np.pad(inside, [(0, 0), (0, 0), *((0, e) for e in ends)])
    view = np.lib.stride_tricks.sliding_window_view(
        grown,
        spans,
        tuple(range(2, grown.ndim)),
    )
    steps = [slice(0, (o - 1) * s + 1, s) for o, s in zip(shape.outputs, shape.strides)]
    taps = [slice(None, None, d) for d in shape.dilations]
    found: Array = view[(slice(None), slice(None), *steps, *taps)]
    return np.asarray(found.sum(tuple(range(-len(spans), 0))))


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


def _lp_pool(call: OpCall, inputs: Buffers, outputs: Buffers) -> list[Computation]:
    x, out, shape = inputs[0], outputs[0], _geometry(call)
    rank, p = len(shape.kernel), call.attr("p", 2)
    total = Buffer(f"{call.name}_sum", out.shape, wide_dtype(x.dtype))

    def value(*i: Any) -> Expr:
        lead, o, k = _split_point(i, rank)
        return power(wide(shape.read(x, lead, shape.place(o, k), 0)), p)

    return [
        reduce_(f"{call.name}_sum", total, shape.kernel, "add", value),
        map_(call.name, out, lambda *i: cast(root(total[i], p), out.dtype)),
    ]


def power(x: Expr, p: int) -> Expr:
    """|x| ** p."""
    if p == 1:
        return apply("abs", x)
    return x * x if p == 2 else apply("pow", apply("abs", x), const(p, x.dtype))


def root(x: Expr, p: int) -> Expr:
    """x ** (1 / p) of a sum of powers."""
    if p == 1:
        return x
    return apply("sqrt", x) if p == 2 else apply("pow", x, const(1 / p, x.dtype))


register(
    OpDef(
        "LpPool", _type, since=2, compute=_lp_pool, flops=_window_flops, traits=SPATIAL
    )
)


def _global_type(call: OpCall) -> Sequence[Type]:
    x = call.shape(0)
    return [(call.dtype(0), (*x[:2], *(1,) * (len(x) - 2)))]


def _global(op: str) -> Any:
    """op: "max", "mean" or "lp"."""

    def compute(call: OpCall, inputs: Buffers, outputs: Buffers) -> list[Computation]:
        x, out = inputs[0], outputs[0]
        over = x.shape[2:]
        rank, p = len(x.shape), call.attr("p", 2)

        def value(*i: Any) -> Expr:
            found = wide(x[(*i[:2], *i[rank:])])
            return power(found, p) if op == "lp" else found

        if op == "max":
            return [reduce_(call.name, out, over, "max", value)]
        total = Buffer(f"{call.name}_sum", out.shape, wide_dtype(x.dtype))

        def result(*i: Any) -> Expr:
            found = root(total[i], p) if op == "lp" else total[i] / math.prod(over)
            return cast(found, out.dtype)

        return [
            reduce_(f"{call.name}_sum", total, over, "add", value),
            map_(call.name, out, result),
        ]

    return compute


def _global_arrays(f: Any) -> Any:
    def reference(call: OpCall, x: Array) -> list[Array]:
        found = f(widened(x), axis=tuple(range(2, x.ndim)), keepdims=True)
        return [np.asarray(found).astype(x.dtype)]

    return reference


for _name, _op, _f, _traits in (
    ("GlobalMaxPool", "max", np.max, SPATIAL | SELECTS),
    ("GlobalAveragePool", "mean", np.mean, SPATIAL),
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
