"""ConvTranspose as Convs whose results, one channel per phase of the stride, are interleaved.

With stride s the output at s * q + r combines the inputs q - j with the weights r + s * j. For each
phase r this is a convolution of stride 1 with every s-th weight, in reverse order; all phases with
equally many weights form one Conv with a channel for each of them. Weights are not padded: a zero
would turn an infinite neighboring input into NaN. The channels of a phase are neighbors, as they
are in a channel-last result. If stride and dilation have a common factor g, only every g-th result
is nonzero, and these form a ConvTranspose without that factor. The Convs take over the remaining
dilation. Negative padding that widens the result, and weights that are not finite (padding is
multiplied by them), use a direct form.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, product
from typing import Any

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import int64
from tilewright.base.numbers import ceil_div
from tilewright.compute.build import cast, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr, Le, Lt, Select, const
from tilewright.graph.nodes import Value
from tilewright.graph.ops.broadcasting import wide_dtype, widened
from tilewright.graph.ops.conv import column, with_bias
from tilewright.graph.ops.conv_gradient import ConvolutionTaps, conv_transpose_gradient
from tilewright.graph.ops.derivative import Backward
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register
from tilewright.graph.ops.traits import SPATIAL

Buffers = Sequence[Buffer]


@dataclass(frozen=True, slots=True)
class _Attributes:
    """The attributes of a ConvTranspose, with their defaults."""

    group: int
    strides: Sequence[int]
    dilations: Sequence[int]
    output_padding: Sequence[int]
    pads: Sequence[int]
    output_shape: Sequence[int]
    auto_pad: str


def _attributes(call: OpCall, rank: int) -> _Attributes:
    return _Attributes(
        group=call.attr("group", 1),
        strides=call.attr("strides") or [1] * rank,
        dilations=call.attr("dilations") or [1] * rank,
        output_padding=call.attr("output_padding") or [0] * rank,
        pads=call.attr("pads") or [0] * 2 * rank,
        output_shape=call.attr("output_shape") or (),
        auto_pad=call.attr("auto_pad", "NOTSET") or "NOTSET",
    )


def _geometry(call: OpCall) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Front padding and output extent per spatial axis of a ConvTranspose."""
    return _extents(call, call.shape(0), call.shape(1))


def _extents(
    call: OpCall,
    x: tuple[int, ...],
    w: tuple[int, ...],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """As `_geometry`, for an input of shape x and weights of shape w."""
    fits = len(x) == len(w) >= 2 and x[1] == w[0]
    if not fits or w[0] % call.attr("group", 1):
        raise call.error(
            f"the input {list(x)} and weights {list(w)} do not fit together"
        )
    attributes = _attributes(call, len(x) - 2)
    begin = []
    outputs = []
    for n, (extent, taps) in enumerate(zip(x[2:], w[2:], strict=True)):
        low, out = _output_window(attributes, n, extent, taps)
        if out < 0:
            raise call.error("the padding is larger than the result")
        begin.append(low)
        outputs.append(out)
    return tuple(begin), tuple(outputs)


def _type(call: OpCall) -> Sequence[Type]:
    channels = call.shape(1)[1] * call.attr("group", 1)
    return call.result((call.shape(0)[0], channels, *_geometry(call)[1]))


def _output_window(
    attributes: _Attributes,
    n: int,
    extent: int,
    taps: int,
) -> tuple[int, int]:
    """Front padding and output extent of spatial axis `n`."""
    stride = attributes.strides[n]
    reach = (taps - 1) * attributes.dilations[n]
    full = (extent - 1) * stride + reach + 1 + attributes.output_padding[n]
    auto = attributes.auto_pad
    asked = attributes.output_shape
    rank = len(attributes.strides)
    if asked or auto in ("SAME_UPPER", "SAME_LOWER"):
        out = asked[len(asked) - rank + n] if asked else extent * stride
        total = full - out
        if not asked and total < 0:
            return 0, out
        return (total // 2 if auto == "SAME_UPPER" else total - total // 2), out
    if auto == "VALID":
        return 0, full
    low = attributes.pads[n]
    high = attributes.pads[n + rank]
    return low, full - low - high


@dataclass(frozen=True, slots=True)
class _Axis:
    """A spatial axis; the requested results start `begin` after the first unpadded one."""

    stride: int
    dilation: int
    begin: int
    count: int

    @property
    def end(self) -> int:
        """The end of the requested results."""
        return self.begin + self.count

    @property
    def step(self) -> int:
        """The distance between results that are not always zero."""
        return math.gcd(self.stride, self.dilation)

    @property
    def dense(self) -> _Axis:
        """The same axis without the results that are always zero."""
        step = self.step
        first = ceil_div(self.begin, step)
        last = (self.end - 1) // step
        kept = range(first, last + 1)
        return _Axis(
            stride=self.stride // step,
            dilation=self.dilation // step,
            begin=first,
            count=len(kept),
        )

    @property
    def first_group(self) -> int:
        """The group of `stride` results, one per phase, that contains the first result."""
        return self.begin // self.stride

    @property
    def end_group(self) -> int:
        """The group after the one of the last result."""
        return ceil_div(self.end, self.stride)


def _axes(call: OpCall) -> list[_Axis]:
    attributes = _attributes(call, len(call.shape(0)) - 2)
    begin, outputs = _geometry(call)
    return [
        _Axis(*numbers)
        for numbers in zip(
            attributes.strides,
            attributes.dilations,
            begin,
            outputs,
            strict=True,
        )
    ]


def _phased(call: OpCall) -> bool:
    """Whether it can be expressed as Convs."""
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
    bias = call.given(2)
    # Results that no weight reaches are inserted between the others; they have the bias, too.
    full = all(
        a.step == 1 and a.stride <= taps
        for a, taps in zip(axes, call.shape(1)[2:], strict=True)
    )
    y = _interleaved(call, f, dense, bias if full else None)
    if axes != dense:
        y = _between_zeros(f, y, axes)
    if bias is None or full:
        return [y]
    ones = [1] * len(axes)
    column = f.reshape(bias, -1, *ones)
    return [f.op("Add", y, column)]


def _between_zeros(
    f: Fragment,
    y: Value,
    axes: Sequence[_Axis],
) -> Value:
    """Every `step`-th result of each axis, from the dense ones."""
    lead = y.extents[:2]
    pairs: list[int] = []
    zeros_behind: list[int] = []
    extents = []
    front = []
    back = []
    for a in axes:
        dense = a.dense
        full = dense.count * a.step
        before = dense.begin * a.step - a.begin
        pairs += [dense.count, 1]
        zeros_behind += [0, a.step - 1]
        extents.append(full)
        front.append(before)
        back.append(a.count - full - before)
    none = [0] * len(zeros_behind)
    separate = f.reshape(y, *lead, *pairs)
    separate = f.op("Pad", separate, f.ints(*none, 0, 0, 0, 0, *zeros_behind))
    y = f.reshape(separate, *lead, *extents)
    return f.op("Pad", y, f.ints(0, 0, *front, 0, 0, *back))


@dataclass(frozen=True, slots=True)
class _Phases:
    """Phases of an axis whose first weights are start .. stop - 1.

    Each has `taps` weights, and the first one multiplies the input `shift` positions earlier.
    """

    start: int
    stop: int
    taps: int
    shift: int


def _phases(weights: int, axis: _Axis) -> list[_Phases]:
    """The phases of an axis that have weights; equal neighbors are grouped.

    Weight t belongs to phase t * dilation % stride, as do t + stride, t + 2 * stride, ...: phases
    are ordered by their first weights.
    """

    def taps_and_shift(first: int) -> tuple[int, int]:
        taps = ceil_div(weights - first, axis.stride)
        shift = first * axis.dilation // axis.stride
        return taps, shift

    found = []
    firsts = range(min(weights, axis.stride))
    for (taps, shift), alike in groupby(firsts, taps_and_shift):
        start, *others = alike
        last = others[-1] if others else start
        found.append(_Phases(start, last + 1, taps, shift))
    return found


def _interleaved(
    call: OpCall,
    f: Fragment,
    axes: Sequence[_Axis],
    bias: Value | None,
) -> Value:
    """Phases as the channels of Convs, one Conv per kind of phase, interleaved."""
    sizes = call.shape(1)[2:]
    kinds = [_phases(k, a) for k, a in zip(sizes, axes, strict=True)]
    parts = [_some_phases(call, f, axes, some, bias) for some in product(*kinds)]
    if all(a.stride == 1 for a in axes):
        return parts[0]
    for axis, pieces in reversed([*enumerate(kinds, 2)]):
        n = len(pieces)
        if n > 1:
            rows = [parts[k : k + n] for k in range(0, len(parts), n)]
            parts = [f.op("Concat", *row, axis=axis) for row in rows]
    (y,) = parts
    return _woven(call, f, _in_order(f, y, sizes, axes), axes)


def _woven(
    call: OpCall,
    f: Fragment,
    y: Value,
    axes: Sequence[_Axis],
) -> Value:
    """The results in their places, from (batch, group, phases.., channel, groups of results..)."""
    rank = len(axes)
    order = [0, 1, rank + 2]
    for phase in range(2, 2 + rank):
        order += [phase + rank + 1, phase]
    woven = f.transpose(y, *order)
    starts = []
    ends = []
    full = []
    for a in axes:
        start = a.begin - a.stride * a.first_group
        starts.append(start)
        ends.append(start + a.count)
        full.append(a.stride * (a.end_group - a.first_group))
    batch = call.shape(0)[0]
    channels = call.shape(1)[1] * call.attr("group", 1)
    y = f.reshape(woven, batch, channels, *full)
    spatial = f.ints(*range(2, 2 + rank))
    return f.op(
        "Slice",
        y,
        f.ints(*starts),
        f.ints(*ends),
        spatial,
    )


def _in_order(
    f: Fragment,
    y: Value,
    sizes: Sequence[int],
    axes: Sequence[_Axis],
) -> Value:
    """All phases in order, from those that have weights in the order of their first weights."""
    missing = [max(0, a.stride - k) for a, k in zip(axes, sizes, strict=True)]
    if any(missing):
        others = [0] * (1 + len(axes))
        behind = [0, 0, *missing, *others]
        before = [0] * len(behind)
        y = f.op("Pad", y, f.ints(*before, *behind))
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
    """(batch, group, phases.., channel, results..) of a Conv; its plain result without a stride."""
    x = call.shape(0)
    group = call.attr("group", 1)
    before = []
    after = []
    for t, a, extent in zip(some, axes, x[2:], strict=True):
        reach = (t.taps - 1) * a.dilation
        before.append(reach + t.shift - a.first_group)
        after.append(a.end_group - t.shift - extent)
    per_group = call.shape(1)[1]
    widths = [t.stop - t.start for t in some]
    phases = math.prod(widths)
    if bias is not None and phases > 1:
        row = f.reshape(bias, group, 1, per_group)
        each = f.op("Expand", row, f.ints(group, phases, per_group))
        bias = f.reshape(each, group * phases * per_group)
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
    counts = [a.end_group - a.first_group for a in axes]
    return f.reshape(y, x[0], group, *widths, per_group, *counts)


def _weights(
    call: OpCall,
    f: Fragment,
    axes: Sequence[_Axis],
    some: Sequence[_Phases],
) -> Value:
    """The weights of the Conv: (group, phases, channel) by (input channel, reversed taps)."""
    w = call.value(1)
    group = call.attr("group", 1)
    channels, per_group = w.extents[:2]
    rank = len(axes)
    inner = channels // group
    w = f.reshape(w, group, inner, *w.extents[1:])
    for n, (t, a) in enumerate(zip(some, axes, strict=True)):
        reversed_taps = np.arange(t.taps)[::-1, None]
        taps = reversed_taps * a.stride + np.arange(t.start, t.stop)
        w = f.op(
            "Gather",
            w,
            f.constant(taps, int64),
            axis=3 + 2 * n,
        )
    tap_axes = range(3, 3 + 2 * rank, 2)
    phase_axes = range(4, 4 + 2 * rank, 2)
    w = f.transpose(w, 0, *phase_axes, 2, 1, *tap_axes)
    phases = math.prod(t.stop - t.start for t in some)
    rows = per_group * group * phases
    return f.reshape(w, rows, inner, *(t.taps for t in some))


def _direct(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation] | None:
    """Each output element gathers the window positions whose stride reaches it."""
    if _phased(call):
        return None
    x, w = inputs[:2]
    out = outputs[0]
    rank = len(x.shape) - 2
    attributes = _attributes(call, rank)
    group = attributes.group
    begin, _ = _geometry(call)
    per_group = w.shape[1]
    channels = x.shape[1] // group
    accumulator = wide_dtype(out.dtype)

    def value(*i: Any) -> Expr:
        n, m, *rest = i
        o = rest[:rank]
        c = rest[rank]
        k = rest[rank + 1 :]
        inside: Expr | None = None
        place: list[Expr] = []
        for a in range(rank):
            stride = attributes.strides[a]
            at = o[a] + begin[a] - k[a] * attributes.dilations[a]
            tests = [Le(const(0), at), Lt(at, const(x.shape[a + 2] * stride))]
            if stride > 1:
                tests.append((at % stride).eq(0))
                at = at // stride
            for t in tests:
                inside = t if inside is None else inside & t
            place.append(at)
        channel = c if group == 1 else (m // per_group) * channels + c
        read = x[(n, channel, *place)]
        weight = w[(channel, m if group == 1 else m % per_group, *k)]
        term = cast(read, accumulator) * cast(weight, accumulator)
        if inside is None:
            return term
        return Select(inside, term, const(0, accumulator))

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
    """NumPy: one product per window position, added where the stride places it."""
    begin, outputs = _extents(call, x.shape, w.shape)
    found = _spread(call, widened(x), widened(w))
    around = [(0, 0), (0, 0)]
    cut = [slice(None), slice(None)]
    for low, out, extent in zip(begin, outputs, found.shape[2:], strict=True):
        behind = low + out - extent
        around.append((max(0, -low), max(0, behind)))
        start = max(0, low)
        cut.append(slice(start, start + out))
    result = np.pad(found, around)[tuple(cut)]
    if b is not None:
        result = result + column(call, b, result.shape[1], result.ndim)
    return [result.astype(x.dtype)]


def _spread(call: OpCall, x: Array, w: Array) -> Array:
    """The result before padding is removed, in the operands' dtype."""
    attributes = _attributes(call, x.ndim - 2)
    group = attributes.group
    strides = attributes.strides
    dilations = attributes.dilations
    batch, channels, *extents = x.shape
    per_group, *kernel = w.shape[1:]
    depth = channels // group
    full = []
    for n, taps, stride, dilation in zip(
        extents, kernel, strides, dilations, strict=True
    ):
        reach = (taps - 1) * dilation
        full.append(max(0, n - 1) * stride + reach + 1)
    out = np.zeros((batch, group, per_group, *full), np.result_type(x, w))
    data = x.reshape(batch, group, depth, math.prod(extents))
    weights = w.reshape(group, depth, per_group, *kernel)
    for k in np.ndindex(*kernel):
        matrix = weights[(..., *k)].swapaxes(1, 2)
        part = np.matmul(matrix, data)
        place = [slice(None)] * 3
        for tap, n, stride, dilation in zip(
            k, extents, strides, dilations, strict=True
        ):
            first = tap * dilation
            place.append(slice(first, first + n * stride, stride))
        out[tuple(place)] += part.reshape(batch, group, per_group, *extents)
    return out.reshape(batch, group * per_group, *full)


def _gradient(
    f: Fragment,
    call: Backward,
    x: Sequence[Value],
    y: Value,
    g: Value,
) -> Sequence[Value | None]:
    a = _attributes(call, call.rank(0) - 2)
    begin, _ = _geometry(call)
    taps = ConvolutionTaps(tuple(a.strides), tuple(a.dilations), begin, a.group)
    return conv_transpose_gradient(f, call, taps, g)


register(
    OpDef(
        "ConvTranspose",
        _type,
        compute=_direct,
        reference=_arrays,
        decompose=_decompose,
        flops=lambda call: 2 * call.size(0) * math.prod(call.shape(1)[1:]),
        traits=SPATIAL,
        gradient=_gradient,
    )
)
