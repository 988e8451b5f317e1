"""Reading images at real positions: GridSample, RoiAlign, DeformConv.

A position is a real number per spatial axis, in elements; the elements around it are mixed with
weights per axis. What lies outside the input is zero, the border's value or a reflection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product
from typing import Any

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
from tilewright.graph.ops.broadcasting import wide, wide_dtype
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register

Buffers = Sequence[Buffer]
CUBIC = -0.75  # Keys' parameter, as GridSample fixes it

# An element's position along an axis -> where to read it, and whether it is there (None: always).
Outside = Callable[[Expr, int], tuple[Expr, Expr | None]]


def floor_index(x: Expr) -> Expr:
    """The largest integer not above `x`, as an index."""
    return cast(apply("floor", x), INDEX)


def clamped(place: Expr, extent: int) -> Expr:
    """The nearest position inside the axis."""
    return Max(Min(place, const(extent - 1)), const(0))


def or_zero(place: Expr, extent: int) -> tuple[Expr, Expr | None]:
    """Outside the input there are zeros."""
    return place, And(Le(const(0), place), Lt(place, const(extent)))


def or_border(place: Expr, extent: int) -> tuple[Expr, Expr | None]:
    """Outside the input its border continues."""
    return clamped(place, extent), None


def read(
    x: Buffer, lead: Sequence[Any], places: Sequence[Expr], outside: Outside
) -> Expr:
    """The element at integer positions that may lie outside, in float32 at least."""
    found = [outside(p, n) for p, n in zip(places, x.shape[len(lead) :], strict=True)]
    load = wide(
        x[(*lead, *(clamped(p, n) for (p, _), n in zip(found, x.shape[len(lead) :])))]
    )
    guards = [g for _, g in found if g is not None]
    return Select(reduce(And, guards), load, const(0, load.dtype)) if guards else load


def linear_weights(x: Expr) -> tuple[Expr, list[Expr]]:
    """The first element under the filter at `x`, and the weight of it and those that follow."""
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

    return floor_index(x) - 1, [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)]


def mixed(
    x: Buffer,
    lead: Sequence[Any],
    positions: Sequence[Expr],
    weights: Callable[[Expr], tuple[Expr, list[Expr]]],
    outside: Outside,
) -> Expr:
    """The weighted mean of the elements of x[lead] around `positions`."""
    per_axis = [weights(p) for p in positions]
    terms = []
    for taps in product(*(range(len(w)) for _, w in per_axis)):
        places = [
            first + t if t else first
            for (first, _), t in zip(per_axis, taps, strict=True)
        ]
        weight = reduce(lambda a, b: a * b, (w[t] for (_, w), t in zip(per_axis, taps)))
        terms.append(weight * cast(read(x, lead, places, outside), weight.dtype))
    return reduce(lambda a, b: a + b, terms)


def _grid_type(call: OpCall) -> Sequence[Type]:
    x, grid = call.shape(0), call.shape(1)
    if len(x) != len(grid) or grid[-1] != len(x) - 2 or grid[0] != x[0]:
        raise call.error(f"the grid {list(grid)} does not fit the input {list(x)}")
    return [(call.dtype(0), (*x[:2], *grid[1:-1]))]


def _reflected(x: Expr, low: float, high: float) -> Expr:
    """`x` mirrored at the borders until it is between them."""
    span = high - low
    if span == 0:
        return const(low, x.dtype)
    period = 2 * span
    t: Expr = apply("abs", x - low)
    t = t - apply("floor", t / period) * period
    return low + Min(t, period - t)


def _position(call: OpCall, v: Expr, extent: int) -> tuple[Expr, float, float]:
    """A coordinate of the grid, -1 .. 1, in elements; the borders that reflection mirrors at."""
    if call.attr("align_corners", 0):
        return (v + 1.0) * ((extent - 1) / 2), 0.0, extent - 1.0
    return ((v + 1.0) * extent - 1.0) / 2.0, -0.5, extent - 0.5


def _grid_sample(
    call: OpCall, inputs: Buffers, outputs: Buffers
) -> list[Computation] | None:
    x, grid, out = inputs[0], inputs[1], outputs[0]
    mode = str(call.attr("mode", "linear")).removeprefix("bi")
    padding = call.attr("padding_mode", "zeros")
    if mode not in ("nearest", "linear", "cubic"):
        raise call.error(f"no such mode: {mode!r}")
    extents = x.shape[2:]
    rank = len(extents)
    if 0 in x.shape:
        return None
    work = wide_dtype(grid.dtype)

    def settled(v: Expr, extent: int) -> Expr:
        position, low, high = _position(call, v, extent)
        if mode == "nearest":
            position = apply("round_even", position)
        beyond = (position < low) | (position > high)
        if padding == "border":
            nearest = Max(Min(position, const(extent - 1, work)), const(0, work))
            return Select(beyond, nearest, position)
        if padding == "reflection":
            return Select(beyond, _reflected(position, low, high), position)
        # No filter reaches the input from there; farther away is beyond integers and infinite.
        return Max(Min(position, const(extent + 2, work)), const(-3, work))

    def outside(place: Expr, extent: int) -> tuple[Expr, Expr | None]:
        if padding == "zeros":
            return or_zero(place, extent)
        if padding == "border":
            return or_border(place, extent)
        _, low, high = _position(call, const(0, work), extent)
        v = cast(place, work)
        mirrored = cast(_reflected(v, low, high), INDEX)
        return Select((v < low) | (v > high), mirrored, place), None

    def value(*i: Any) -> Expr:
        at = [grid[(i[0], *i[2:], const(rank - 1 - a))] for a in range(rank)]
        positions = [settled(wide(v), n) for v, n in zip(at, extents, strict=True)]
        if mode == "nearest":
            places = [cast(p, INDEX) for p in positions]
            return cast(read(x, i[:2], places, outside), out.dtype)
        weights = cubic_weights if mode == "cubic" else linear_weights
        return cast(mixed(x, i[:2], positions, weights, outside), out.dtype)

    return [map_(call.name, out, value)]


register(OpDef("GridSample", _grid_type, since=16, compute=_grid_sample))


def _roi_type(call: OpCall) -> Sequence[Type]:
    rois = call.shape(1)
    if len(call.shape(0)) != 4 or len(rois) != 2 or rois[1] != 4:
        raise call.error(
            f"input {list(call.shape(0))} and rois {list(rois)} do not fit together"
        )
    size = (call.attr("output_height", 1), call.attr("output_width", 1))
    return [(call.dtype(0), (rois[0], call.shape(0)[1], *size))]


def _roi_align(
    call: OpCall, inputs: Buffers, outputs: Buffers
) -> list[Computation] | None:
    """With a fixed sampling ratio; otherwise how many samples there are depends on the rois."""
    x, rois, batch = inputs[0], inputs[1], inputs[2]
    out = outputs[0]
    samples = call.attr("sampling_ratio", 0)
    if samples <= 0 or 0 in x.shape:
        return None
    half = call.version >= 16 and (
        call.attr("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    )
    scale, shift = float(call.attr("spatial_scale", 1.0)), 0.5 if half else 0.0
    work = wide_dtype(x.dtype)
    largest = call.attr("mode", "avg") == "max"

    def position(n: Any, bin_: Any, sample: Any, axis: int) -> Expr:
        first, last = (
            wide(rois[(n, const(c))]) * scale - shift for c in (1 - axis, 3 - axis)
        )
        width = last - first
        if not half:
            width = Max(width, const(1, work))
        step = width / float(out.shape[axis + 2])
        inner = (cast(sample, work) + 0.5) * step / float(samples)
        return first + cast(bin_, work) * step + inner

    def value(*i: Any) -> Expr:
        n, channel, *rest = i
        lead = (cast(batch[n], INDEX), channel)
        positions = [position(n, rest[a], rest[a + 2], a) for a in range(2)]
        extents = x.shape[2:]
        inside: list[Expr] = []
        limited: list[Expr] = []
        for p, extent in zip(positions, extents, strict=True):
            inside += [p >= -1.0, p <= float(extent)]
            limited.append(Max(Min(p, const(extent - 1, work)), const(0, work)))
        if largest:
            found: Expr = _largest_corner(x, lead, limited)
        else:
            found = mixed(x, lead, limited, linear_weights, or_border)
        return Select(reduce(And, inside), cast(found, work), const(0, work))

    over = (samples, samples)
    if largest:
        return [reduce_(call.name, out, over, "max", value)]
    total = Buffer(f"{call.name}_sum", out.shape, work)
    return [
        reduce_(f"{call.name}_sum", total, over, "add", value),
        map_(
            call.name,
            out,
            lambda *i: cast(total[i] / float(samples * samples), out.dtype),
        ),
    ]


def _largest_corner(x: Buffer, lead: Sequence[Any], positions: Sequence[Expr]) -> Expr:
    """The largest of the four weighted elements around a position: ONNX's "max" mode."""
    (y0, wy), (x0, wx) = (linear_weights(p) for p in positions)
    found = [
        wy[a] * wx[b] * read(x, lead, (y0 + a, x0 + b), or_border)
        for a in range(2)
        for b in range(2)
    ]
    return reduce(Max, found)


register(OpDef("RoiAlign", _roi_type, since=10, compute=_roi_align))


def _deform_type(call: OpCall) -> Sequence[Type]:
    x, w, offset = call.shape(0), call.shape(1), call.shape(2)
    groups = call.attr("offset_group", 1)
    rank = len(w) - 2
    if len(x) != len(w) or len(offset) != len(x):
        raise call.error(
            f"input {list(x)}, weights {list(w)}, offsets {list(offset)} do not fit"
        )
    if offset[1] != groups * math.prod(w[2:]) * rank or x[1] != w[1] * call.attr(
        "group", 1
    ):
        raise call.error(f"offsets {list(offset)} do not fit the weights {list(w)}")
    return [(call.dtype(0), (x[0], w[0], *offset[2:]))]


def _deform_conv(call: OpCall, inputs: Buffers, outputs: Buffers) -> list[Computation]:
    x, w, offset = inputs[:3]
    out = outputs[0]
    kernel = w.shape[2:]
    rank, channels = len(kernel), w.shape[1]
    strides = call.attr("strides") or [1] * rank
    dilations = call.attr("dilations") or [1] * rank
    pads = call.attr("pads") or [0] * 2 * rank
    per_group = w.shape[0] // call.attr("group", 1)
    per_offset = x.shape[1] // call.attr("offset_group", 1)
    work = wide_dtype(out.dtype)

    def value(*i: Any) -> Expr:
        n, m, *rest = i
        o, c, k = rest[:rank], rest[rank], rest[rank + 1 :]
        channel = (m // per_group) * channels + c
        tap = k[0]
        for a in range(1, rank):
            tap = tap * kernel[a] + k[a]
        tap = tap + (channel // per_offset) * math.prod(kernel)
        positions = []
        for a in range(rank):
            base = o[a] * strides[a] + k[a] * dilations[a] - pads[a]
            positions.append(wide(offset[(n, tap * rank + a, *o)]) + cast(base, work))
        found = cast(mixed(x, (n, channel), positions, linear_weights, or_zero), work)
        found = found * cast(w[(m, c, *k)], work)
        return found * wide(inputs[4][(n, tap, *o)]) if call.has(4) else found

    over = (channels, *kernel)
    if not call.has(3):
        return [reduce_(call.name, out, over, "add", value)]
    total = Buffer(f"{call.name}_sum", out.shape, work)
    return [
        reduce_(f"{call.name}_sum", total, over, "add", value),
        map_(
            call.name, out, lambda *i: cast(total[i] + wide(inputs[3][i[1]]), out.dtype)
        ),
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
