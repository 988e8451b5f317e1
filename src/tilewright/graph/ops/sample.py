"""Sampling images at real positions: GridSample, RoiAlign, DeformConv.

A position is a real number per spatial axis, in elements; the elements around it are combined with
weights per axis. Outside the input the value is zero, the border's value or a reflection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import product
from operator import add, mul
from typing import Any, Final

from tilewright.base.dtypes import DType
from tilewright.compute.build import cast, map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import (
    INDEX,
    And,
    Buffer,
    Expr,
    Le,
    Lt,
    Max,
    Min,
    Select,
    const,
)
from tilewright.expr.nodes import call as apply
from tilewright.graph.nodes import Operation
from tilewright.graph.ops.broadcasting import wide, wide_dtype
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register

Buffers = Sequence[Buffer]
CUBIC = -0.75  # Keys' parameter, as fixed by GridSample

# An element's position along an axis -> where to read it, and whether it exists (None: always).
Outside = Callable[[Expr, int], tuple[Expr, Expr | None]]


def floor_index(x: Expr) -> Expr:
    """The largest integer not above `x`, as an index."""
    return cast(apply("floor", x), INDEX)


def clamped(place: Expr, extent: int) -> Expr:
    """The nearest position inside the axis."""
    return Max(Min(place, const(extent - 1)), const(0))


def or_zero(place: Expr, extent: int) -> tuple[Expr, Expr | None]:
    """Zeros outside the input."""
    return place, And(Le(const(0), place), Lt(place, const(extent)))


def or_border(place: Expr, extent: int) -> tuple[Expr, Expr | None]:
    """The border's value outside the input."""
    return clamped(place, extent), None


def read(
    x: Buffer,
    lead: Sequence[Any],
    places: Sequence[Expr],
    outside: Outside,
) -> Expr:
    """The element at integer positions, which may be outside, in float32 or wider."""
    inside: list[Expr] = []
    guards: list[Expr] = []
    for place, extent in zip(places, x.shape[len(lead) :], strict=True):
        at, guard = outside(place, extent)
        inside.append(clamped(at, extent))
        if guard is not None:
            guards.append(guard)
    load = wide(x[(*lead, *inside)])
    if not guards:
        return load
    return Select(
        reduce(And, guards),
        load,
        const(0, load.dtype),
    )


def linear_weights(x: Expr) -> tuple[Expr, list[Expr]]:
    """The first element under the filter at `x`, and the weights of it and its successors."""
    t = x - apply("floor", x)
    return floor_index(x), [1.0 - t, t]


def cubic_weights(x: Expr) -> tuple[Expr, list[Expr]]:
    """As `linear_weights`, with Keys' cubic over four elements."""
    t = x - apply("floor", x)
    a = CUBIC

    def near(d: Expr) -> Expr:
        return ((a + 2) * d - (a + 3)) * d * d + 1.0

    def far(d: Expr) -> Expr:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    weights = [
        far(t + 1.0),
        near(t),
        near(1.0 - t),
        far(2.0 - t),
    ]
    return floor_index(x) - 1, weights


def mixed(
    x: Buffer,
    lead: Sequence[Any],
    positions: Sequence[Expr],
    weights: Callable[[Expr], tuple[Expr, list[Expr]]],
    outside: Outside,
) -> Expr:
    """The weighted mean of the elements of x[lead] around `positions`."""
    firsts, per_axis = zip(*(weights(p) for p in positions), strict=True)
    terms = []
    for taps in product(*(range(len(w)) for w in per_axis)):
        places = [first + t if t else first for first, t in zip(firsts, taps)]
        weight = reduce(mul, (w[t] for w, t in zip(per_axis, taps)))
        element = read(x, lead, places, outside)
        terms.append(weight * cast(element, weight.dtype))
    found: Expr = reduce(add, terms)
    return found


def _grid_type(call: OpCall) -> Sequence[Type]:
    x = call.shape(0)
    grid = call.shape(1)
    if len(x) != len(grid) or grid[-1] != len(x) - 2 or grid[0] != x[0]:
        raise call.error(f"the grid {list(grid)} does not fit the input {list(x)}")
    return call.result((*x[:2], *grid[1:-1]))


def _reflected(x: Expr, low: float, high: float) -> Expr:
    """`x` reflected at the borders until it is between them."""
    span = high - low
    if span == 0:
        return const(low, x.dtype)
    period = 2 * span
    t: Expr = apply("abs", x - low)
    t = t - apply("floor", t / period) * period
    return low + Min(t, period - t)


class _GridSample:
    """How a GridSample reads its input, given its attributes and the dtype of its positions."""

    def __init__(self, call: OpCall, work: DType) -> None:
        self.call = call
        self.work = work
        self.mode = newest_modes(call.operation).attributes["mode"]
        self.padding = call.attr("padding_mode", "zeros")
        if self.mode not in ("nearest", "linear", "cubic"):
            raise call.error(f"unknown mode: {self.mode!r}")

    def position(self, v: Expr, extent: int) -> tuple[Expr, float, float]:
        """A grid coordinate, -1 .. 1, in elements, and the borders for reflection."""
        if self.call.attr("align_corners", 0):
            return (v + 1.0) * ((extent - 1) / 2), 0.0, extent - 1.0
        return ((v + 1.0) * extent - 1.0) / 2.0, -0.5, extent - 0.5

    def settled(self, v: Expr, extent: int) -> Expr:
        """The position of a grid coordinate, moved to where the filter reads."""
        position, low, high = self.position(v, extent)
        if self.mode == "nearest":
            position = apply("round_even", position)
        beyond = (position < low) | (position > high)
        if self.padding == "border":
            return Select(beyond, self.limited(position, 0, extent - 1), position)
        if self.padding == "reflection":
            return Select(beyond, _reflected(position, low, high), position)
        # From there no filter reaches the input; values farther away overflow integers.
        return self.limited(position, -3, extent + 2)

    def limited(self, position: Expr, low: int, high: int) -> Expr:
        """The nearest position from `low` to `high`."""
        not_above = Min(position, const(high, self.work))
        return Max(not_above, const(low, self.work))

    def outside(self, place: Expr, extent: int) -> tuple[Expr, Expr | None]:
        """Where to read an element that the filter reaches, and whether it exists."""
        if self.padding == "zeros":
            return or_zero(place, extent)
        if self.padding == "border":
            return or_border(place, extent)
        _, low, high = self.position(const(0, self.work), extent)
        v = cast(place, self.work)
        mirrored = cast(_reflected(v, low, high), INDEX)
        beyond = (v < low) | (v > high)
        return Select(beyond, mirrored, place), None

    def value(
        self,
        x: Buffer,
        lead: Sequence[Any],
        positions: Sequence[Expr],
    ) -> Expr:
        """The sample of x[lead] at adjusted positions."""
        if self.mode == "nearest":
            places = [cast(p, INDEX) for p in positions]
            return read(x, lead, places, self.outside)
        weights = cubic_weights if self.mode == "cubic" else linear_weights
        return mixed(x, lead, positions, weights, self.outside)


def _grid_sample(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation] | None:
    x, grid = inputs
    out = outputs[0]
    sampling = _GridSample(call, wide_dtype(grid.dtype))
    if 0 in x.shape:
        return None
    extents = x.shape[2:]
    last = len(extents) - 1

    def value(*i: Any) -> Expr:
        positions = []
        for axis, extent in enumerate(extents):
            coordinate = grid[(i[0], *i[2:], const(last - axis))]
            positions.append(sampling.settled(wide(coordinate), extent))
        return cast(sampling.value(x, i[:2], positions), out.dtype)

    return [map_(call.name, out, value)]


# Modes by the names that they had before opset 20.
_MODES: Final = {"bilinear": "linear", "bicubic": "cubic"}


def newest_modes(op: Operation) -> Operation:
    """A GridSample whose mode has the name that it has since opset 20."""
    mode = op.attributes.get("mode", "linear")
    renamed = _MODES.get(mode, mode)
    return replace(op, attributes={**op.attributes, "mode": renamed})


register(
    OpDef(
        "GridSample",
        _grid_type,
        since=16,
        compute=_grid_sample,
        newest=newest_modes,
    )
)


def _roi_type(call: OpCall) -> Sequence[Type]:
    rois = call.shape(1)
    if len(call.shape(0)) != 4 or len(rois) != 2 or rois[1] != 4:
        raise call.error(
            f"input {list(call.shape(0))} and rois {list(rois)} do not fit together"
        )
    size = (call.attr("output_height", 1), call.attr("output_width", 1))
    return call.result((rois[0], call.shape(0)[1], *size))


def _roi_align(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation] | None:
    """Requires a fixed sampling ratio; otherwise the number of samples depends on the rois."""
    x, rois, batch = inputs[:3]
    out = outputs[0]
    samples = call.attr("sampling_ratio", 0)
    if samples <= 0 or 0 in x.shape:
        return None
    mode = call.attr("coordinate_transformation_mode", "half_pixel")
    half = call.version >= 16 and mode == "half_pixel"
    scale = float(call.attr("spatial_scale", 1.0))
    shift = 0.5 if half else 0.0
    work = wide_dtype(x.dtype)
    largest = call.attr("mode", "avg") == "max"

    def corner(n: Any, column: int) -> Expr:
        return wide(rois[(n, const(column))]) * scale - shift

    def position(n: Any, bin_: Any, sample: Any, axis: int) -> Expr:
        first = corner(n, 1 - axis)
        width = corner(n, 3 - axis) - first
        if not half:
            width = Max(width, const(1, work))
        step = width / float(out.shape[axis + 2])
        inner = (cast(sample, work) + 0.5) * step / float(samples)
        return first + cast(bin_, work) * step + inner

    def value(*i: Any) -> Expr:
        n, channel, *rest = i
        lead = (cast(batch[n], INDEX), channel)
        inside: list[Expr] = []
        limited: list[Expr] = []
        for axis, extent in enumerate(x.shape[2:]):
            p = position(n, rest[axis], rest[axis + 2], axis)
            inside += [p >= -1.0, p <= float(extent)]
            not_above = Min(p, const(extent - 1, work))
            limited.append(Max(not_above, const(0, work)))
        if largest:
            found: Expr = _largest_corner(x, lead, limited)
        else:
            found = mixed(x, lead, limited, linear_weights, or_border)
        return Select(
            reduce(And, inside),
            cast(found, work),
            const(0, work),
        )

    over = (samples, samples)
    if largest:
        return [reduce_(call.name, out, over, "max", value)]
    total = Buffer(f"{call.name}_sum", out.shape, work)
    count = float(samples * samples)
    return [
        reduce_(total.name, total, over, "add", value),
        map_(call.name, out, lambda *i: cast(total[i] / count, out.dtype)),
    ]


def _largest_corner(
    x: Buffer,
    lead: Sequence[Any],
    positions: Sequence[Expr],
) -> Expr:
    """The largest of the four weighted elements around a position: ONNX's "max" mode."""
    (y0, wy), (x0, wx) = (linear_weights(p) for p in positions)
    found = []
    for a, b in product(range(2), repeat=2):
        corner = read(x, lead, (y0 + a, x0 + b), or_border)
        found.append(wy[a] * wx[b] * corner)
    return reduce(Max, found)


register(
    OpDef(
        "RoiAlign",
        _roi_type,
        since=10,
        compute=_roi_align,
    )
)


def _deform_type(call: OpCall) -> Sequence[Type]:
    x = call.shape(0)
    w = call.shape(1)
    offset = call.shape(2)
    rank = len(w) - 2
    if len(x) != len(w) or len(offset) != len(x):
        raise call.error(
            f"input {list(x)}, weights {list(w)}, offsets {list(offset)} do not fit"
        )
    taps = math.prod(w[2:])
    offsets = call.attr("offset_group", 1) * taps * rank
    channels = w[1] * call.attr("group", 1)
    if offset[1] != offsets or x[1] != channels:
        raise call.error(f"offsets {list(offset)} do not fit the weights {list(w)}")
    return call.result((x[0], w[0], *offset[2:]))


def _deform_conv(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation]:
    x, w, offset = inputs[:3]
    out = outputs[0]
    channels, *kernel = w.shape[1:]
    rank = len(kernel)
    strides = call.attr("strides") or [1] * rank
    dilations = call.attr("dilations") or [1] * rank
    pads = call.attr("pads") or [0] * 2 * rank
    per_group = w.shape[0] // call.attr("group", 1)
    per_offset = x.shape[1] // call.attr("offset_group", 1)
    work = wide_dtype(out.dtype)

    def value(*i: Any) -> Expr:
        n, m, *rest = i
        o = rest[:rank]
        c = rest[rank]
        k = rest[rank + 1 :]
        channel = (m // per_group) * channels + c
        tap = k[0]
        for a in range(1, rank):
            tap = tap * kernel[a] + k[a]
        tap = tap + (channel // per_offset) * math.prod(kernel)
        positions = []
        for a in range(rank):
            base = o[a] * strides[a] + k[a] * dilations[a] - pads[a]
            moved = wide(offset[(n, tap * rank + a, *o)])
            positions.append(moved + cast(base, work))
        element = mixed(x, (n, channel), positions, linear_weights, or_zero)
        found = cast(element, work) * cast(w[(m, c, *k)], work)
        if call.has(4):
            found = found * wide(inputs[4][(n, tap, *o)])
        return found

    over = (channels, *kernel)
    if not call.has(3):
        return [reduce_(call.name, out, over, "add", value)]
    total = Buffer(f"{call.name}_sum", out.shape, work)
    bias = inputs[3]

    def with_bias(*i: Any) -> Expr:
        return cast(total[i] + wide(bias[i[1]]), out.dtype)

    return [
        reduce_(total.name, total, over, "add", value),
        map_(call.name, out, with_bias),
    ]


register(
    OpDef(
        "DeformConv",
        _deform_type,
        since=19,
        compute=_deform_conv,
        flops=lambda call: 10 * call.size_out(0) * math.prod(call.shape(1)[1:]),
    )
)
