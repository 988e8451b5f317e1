"""ConvTranspose: as Convs whose results, one channel per phase of the stride, are interleaved.

With stride s the output at s * q + r mixes the inputs q - j with the weights r + s * j. For each
phase r that is a convolution of stride 1 with every s-th weight, in reverse order; all phases of
as many weights are one Conv with a channel for each of them. No weight is made up: a zero would
turn an infinite input into NaN beside it. The channels of a phase are neighbors: they also are in
a result that is stored channel-last.
Where stride and dilation have a common factor, only every so manieth result is not zero: those are
a ConvTranspose of their own. What is left of a dilation under a stride is that of the Convs. What a
negative padding widens, and weights that are not finite (padding is multiplied by them), have a
direct form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, product
from typing import Any

import numpy as np

from tilewright.base.dtypes import int64
from tilewright.compute.build import cast, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr, Le, Lt, Select, const
from tilewright.graph.nodes import Value
from tilewright.graph.ops.broadcasting import wide_dtype, widened
from tilewright.graph.ops.conv import with_bias
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register
from tilewright.graph.ops.traits import SPATIAL

Buffers = Sequence[Buffer]


def _geometry(call: OpCall) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding in front and output extent per spatial axis of a ConvTranspose."""
    return _extents(call, call.shape(0), call.shape(1))


def _extents(
    call: OpCall, x: tuple[int, ...], w: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """As `_geometry`, for an input of the shape x and weights of the shape w."""
    if len(x) != len(w) or len(x) < 2 or x[1] != w[0] or w[0] % call.attr("group", 1):
        raise call.error(
            f"the input {list(x)} and weights {list(w)} do not fit together"
        )
    rank = len(x) - 2
    strides = call.attr("strides") or [1] * rank
    dilations = call.attr("dilations") or [1] * rank
    extra = call.attr("output_padding") or [0] * rank
    pads = call.attr("pads") or [0] * 2 * rank
    asked = call.attr("output_shape")
    auto = call.attr("auto_pad", "NOTSET") or "NOTSET"
    begin, outputs = [], []
    for n in range(rank):
        full = (
            (x[n + 2] - 1) * strides[n] + (w[n + 2] - 1) * dilations[n] + 1 + extra[n]
        )
        if asked or auto in ("SAME_UPPER", "SAME_LOWER"):
            out = asked[len(asked) - rank + n] if asked else x[n + 2] * strides[n]
            total = full - out
            low = total // 2 if auto == "SAME_UPPER" else total - total // 2
            low = low if asked or total >= 0 else 0
        else:
            low = 0 if auto == "VALID" else pads[n]
            out = full - low - (0 if auto == "VALID" else pads[n + rank])
        if out < 0:
            raise call.error("the padding is larger than the result")
        begin.append(low)
        outputs.append(out)
    return tuple(begin), tuple(outputs)


def _type(call: OpCall) -> Sequence[Type]:
    channels = call.shape(1)[1] * call.attr("group", 1)
    return [(call.dtype(0), (call.shape(0)[0], channels, *_geometry(call)[1]))]


@dataclass(frozen=True, slots=True)
class _Axis:
    """A spatial axis: its stride and dilation, and the results asked for, `begin` from the first
    that there would be without padding."""

    stride: int
    dilation: int
    begin: int
    count: int

    @property
    def step(self) -> int:
        """Only every so manieth result is not zero."""
        return math.gcd(self.stride, self.dilation)

    @property
    def dense(self) -> _Axis:
        """The same without the results that are always zero."""
        step = self.step
        kept = range(-(-self.begin // step), (self.begin + self.count - 1) // step + 1)
        return _Axis(self.stride // step, self.dilation // step, kept.start, len(kept))


def _axes(call: OpCall) -> list[_Axis]:
    rank = len(call.shape(0)) - 2
    given = [call.attr(name) or [1] * rank for name in ("strides", "dilations")]
    return [_Axis(*numbers) for numbers in zip(*given, *_geometry(call), strict=True)]


def _phased(call: OpCall) -> bool:
    """Whether it is written as Convs."""
    axes = _axes(call)
    if 0 in call.shape(0) or any(a.begin < 0 or a.dense.count == 0 for a in axes):
        return False
    weights = call.constant(1)
    return weights is None or bool(np.isfinite(weights).all())


def _decompose(call: OpCall, f: Fragment) -> Sequence[Value] | None:
    if not _phased(call):
        return None
    axes = _axes(call)
    dense = [a.dense for a in axes]
    bias = call.value(2) if call.has(2) else None
    # Results that no weight reaches are put between the others, and have a bias too.
    full = all(
        a.step == 1 and a.stride <= k
        for a, k in zip(axes, call.shape(1)[2:], strict=True)
    )
    y = _interleaved(call, f, dense, bias if full else None)
    if axes != dense:
        y = _between_zeros(f, y, axes)
    if bias is None or full:
        return [y]
    column = f.op("Reshape", bias, f.constant([-1, *[1] * len(axes)], int64))
    return [f.op("Add", y, column)]


def _between_zeros(f: Fragment, y: Value, axes: Sequence[_Axis]) -> Value:
    """Every `step`-th result of each axis, from those that are dense."""
    lead = list(y.extents[:2])
    pairs = [n for a in axes for n in (a.dense.count, 1)]
    apart = f.op("Reshape", y, f.constant([*lead, *pairs], int64))
    after = [n for a in axes for n in (0, a.step - 1)]
    apart = f.op(
        "Pad", apart, f.constant([*[0] * len(after), 0, 0, 0, 0, *after], int64)
    )
    full = [a.dense.count * a.step for a in axes]
    y = f.op("Reshape", apart, f.constant([*lead, *full], int64))
    front = [a.dense.begin * a.step - a.begin for a in axes]
    back = [
        a.count - n - before for a, n, before in zip(axes, full, front, strict=True)
    ]
    return f.op("Pad", y, f.constant([0, 0, *front, 0, 0, *back], int64))


@dataclass(frozen=True, slots=True)
class _Phases:
    """Phases of an axis that begin with the weights start .. stop - 1: each has `taps` weights, and
    its first one is under the input that lies `shift` before."""

    start: int
    stop: int
    taps: int
    shift: int


def _phases(weights: int, axis: _Axis) -> list[_Phases]:
    """The phases of an axis that have weights; alike ones, which are neighbors, together.

    A weight t is that of the phase t * dilation % stride, as are t + stride, t + 2 * stride, ..:
    the phases come in the order of their first weights.
    """
    firsts = range(min(weights, axis.stride))
    found = []
    for (taps, shift), alike in groupby(
        firsts,
        lambda t: (-(-(weights - t) // axis.stride), t * axis.dilation // axis.stride),
    ):
        some = [*alike]
        found.append(_Phases(some[0], some[-1] + 1, taps, shift))
    return found


def _interleaved(
    call: OpCall, f: Fragment, axes: Sequence[_Axis], bias: Value | None
) -> Value:
    """Phases as the channels of Convs, one for each kind of phase, woven."""
    x, sizes, rank = call.shape(0), call.shape(1)[2:], len(axes)
    strides = [a.stride for a in axes]
    first = [a.begin // a.stride for a in axes]
    counts = [
        -(-(a.begin + a.count) // a.stride) - q
        for a, q in zip(axes, first, strict=True)
    ]
    kinds = [_phases(k, a) for k, a in zip(sizes, axes, strict=True)]
    parts = [_some_phases(call, f, axes, some, bias) for some in product(*kinds)]
    if math.prod(strides) == 1:
        return parts[0]
    for axis, pieces in reversed([*enumerate(kinds, 2)]):
        n = len(pieces)
        if n > 1:
            rows = [parts[k : k + n] for k in range(0, len(parts), n)]
            parts = [f.op("Concat", *row, axis=axis) for row in rows]
    (y,) = parts
    y = _in_order(f, y, sizes, axes)
    order = [
        0,
        1,
        rank + 2,
        *(2 + a + half for a in range(rank) for half in (rank + 1, 0)),
    ]
    woven = f.op("Transpose", y, perm=order)
    full = [s * n for s, n in zip(strides, counts, strict=True)]
    channels = call.shape(1)[1] * call.attr("group", 1)
    y = f.op("Reshape", woven, f.constant([x[0], channels, *full], int64))
    starts = [a.begin - a.stride * q for a, q in zip(axes, first, strict=True)]
    ends = [p + a.count for p, a in zip(starts, axes, strict=True)]
    spatial = f.constant(range(2, 2 + rank), int64)
    return f.op("Slice", y, f.constant(starts, int64), f.constant(ends, int64), spatial)


def _in_order(
    f: Fragment, y: Value, sizes: Sequence[int], axes: Sequence[_Axis]
) -> Value:
    """All phases, from those that have weights in the order of their first ones."""
    missing = [max(0, a.stride - k) for a, k in zip(axes, sizes, strict=True)]
    if any(missing):
        behind = [0, 0, *missing, *[0] * (1 + len(axes))]
        y = f.op("Pad", y, f.constant([*[0] * len(behind), *behind], int64))
    for n, a in enumerate(axes, 2):
        place = [t * a.dilation % a.stride for t in range(a.stride)]
        if place != sorted(place):
            y = f.op("Gather", y, f.constant(np.argsort(place), int64), axis=n)
    return y


def _some_phases(
    call: OpCall,
    f: Fragment,
    axes: Sequence[_Axis],
    some: Sequence[_Phases],
    bias: Value | None,
) -> Value:
    """(batch, group, phases.., channel, results..) of a Conv; its result where no stride is."""
    x, group = call.shape(0), call.attr("group", 1)
    first = [a.begin // a.stride for a in axes]
    last = [-(-(a.begin + a.count) // a.stride) for a in axes]
    before = [
        (t.taps - 1) * a.dilation + t.shift - q
        for t, a, q in zip(some, axes, first, strict=True)
    ]
    after = [q - t.shift - n for t, q, n in zip(some, last, x[2:], strict=True)]
    channels, widths = call.shape(1)[1] * group, [t.stop - t.start for t in some]
    phases = math.prod(widths)
    if bias is not None and phases > 1:
        row = f.op("Reshape", bias, f.constant([group, 1, channels // group], int64))
        each = f.op(
            "Expand", row, f.constant([group, phases, channels // group], int64)
        )
        bias = f.op("Reshape", each, f.constant([channels * phases], int64))
    y = f.op(
        "Conv",
        call.value(0),
        _weights(call, f, axes, some),
        bias,
        group=group,
        dilations=[a.dilation for a in axes],
        pads=[*before, *after],
    )
    if all(a.stride == 1 for a in axes):
        return y
    counts = [q - p for p, q in zip(first, last, strict=True)]
    shape = [x[0], group, *widths, channels // group, *counts]
    return f.op("Reshape", y, f.constant(shape, int64))


def _weights(
    call: OpCall, f: Fragment, axes: Sequence[_Axis], some: Sequence[_Phases]
) -> Value:
    """The weights of the Conv: (group, phases, channel) by (input channel, reversed taps)."""
    w, group = call.value(1), call.attr("group", 1)
    shape, rank = w.extents, len(axes)
    inner = shape[0] // group
    w = f.op("Reshape", w, f.constant([group, inner, *shape[1:]], int64))
    for n, (t, a) in enumerate(zip(some, axes, strict=True)):
        taps = np.arange(t.taps)[::-1, None] * a.stride + np.arange(t.start, t.stop)
        w = f.op("Gather", w, f.constant(taps, int64), axis=3 + 2 * n)
    order = [
        0,
        *(4 + 2 * n for n in range(rank)),
        2,
        1,
        *(3 + 2 * n for n in range(rank)),
    ]
    w = f.op("Transpose", w, perm=order)
    rows = shape[1] * group * math.prod(t.stop - t.start for t in some)
    return f.op("Reshape", w, f.constant([rows, inner, *(t.taps for t in some)], int64))


def _direct(
    call: OpCall, inputs: Buffers, outputs: Buffers
) -> list[Computation] | None:
    """Each output element gathers the window positions whose stride reaches it."""
    if _phased(call):
        return None
    x, w, out = inputs[0], inputs[1], outputs[0]
    rank = len(x.shape) - 2
    group = call.attr("group", 1)
    strides = call.attr("strides") or [1] * rank
    dilations = call.attr("dilations") or [1] * rank
    begin, _ = _geometry(call)
    per_group = w.shape[1]
    channels = x.shape[1] // group
    accumulator = wide_dtype(out.dtype)

    def value(*i: Any) -> Expr:
        n, m, *rest = i
        o, c, k = rest[:rank], rest[rank], rest[rank + 1 :]
        inside: Expr | None = None
        place: list[Expr] = []
        for a in range(rank):
            at = o[a] + begin[a] - k[a] * dilations[a]
            tests = [Le(const(0), at), Lt(at, const(x.shape[a + 2] * strides[a]))]
            if strides[a] > 1:
                tests.append((at % strides[a]).eq(0))
                at = at // strides[a]
            for t in tests:
                inside = t if inside is None else inside & t
            place.append(at)
        channel = c if group == 1 else (m // per_group) * channels + c
        weight = w[(channel, m if group == 1 else m % per_group, *k)]
        term = cast(x[(n, channel, *place)], accumulator) * cast(weight, accumulator)
        return term if inside is None else Select(inside, term, const(0, accumulator))

    over = (channels, *w.shape[2:])
    if not call.has(2):
        return [reduce_(call.name, out, over, "add", value)]
    bias = inputs[2]
    total = Buffer(f"{call.name}_sum", out.shape, accumulator)

    return [
        reduce_(call.name, total, over, "add", value),
        with_bias(call, out, total, bias),
    ]


def _arrays(call: OpCall, x: Array, w: Array, b: Array | None = None) -> list[Array]:
    """By one product per window position, added where the stride puts it."""
    begin, outputs = _extents(call, x.shape, w.shape)
    found = _spread(call, widened(x), widened(w))
    around = [
        (max(0, -low), max(0, low + out - n))
        for low, out, n in zip(begin, outputs, found.shape[2:], strict=True)
    ]
    grown = np.pad(found, [(0, 0), (0, 0), *around])
    starts = [max(0, low) for low in begin]
    cut = [slice(n, n + out) for n, out in zip(starts, outputs, strict=True)]
    result = grown[(slice(None), slice(None), *cut)]
    if b is not None:
        result = result + widened(b).reshape(1, -1, *(1,) * len(begin))
    return [result.astype(x.dtype)]


def _spread(call: OpCall, x: Array, w: Array) -> Array:
    """The result without padding, in the dtype of the operands."""
    rank, group = x.ndim - 2, call.attr("group", 1)
    strides = call.attr("strides") or [1] * rank
    dilations = call.attr("dilations") or [1] * rank
    batch, (channels, per_group), kernel = x.shape[0], w.shape[:2], w.shape[2:]
    sizes = zip(x.shape[2:], kernel, strides, dilations, strict=True)
    full = [max(0, n - 1) * s + (k - 1) * d + 1 for n, k, s, d in sizes]
    out = np.zeros((batch, group, per_group, *full), np.result_type(x, w))
    data = x.reshape(batch, group, channels // group, math.prod(x.shape[2:]))
    weights = w.reshape(group, channels // group, per_group, *kernel)
    for k in np.ndindex(*kernel):
        steps = zip(k, dilations, strides, x.shape[2:], strict=True)
        place = [slice(i * d, i * d + n * s, s) for i, d, s, n in steps]
        part = np.matmul(weights[(..., *k)].swapaxes(1, 2), data)
        cut = (slice(None), slice(None), slice(None), *place)
        out[cut] += part.reshape(out[cut].shape)
    return out.reshape(batch, group * per_group, *full)


register(
    OpDef(
        "ConvTranspose",
        _type,
        compute=_direct,
        reference=_arrays,
        decompose=_decompose,
        flops=lambda call: 2 * call.size(0) * math.prod(call.shape(1)[1:]),
        traits=SPATIAL,
    )
)
