"""Sampling images at real positions: GridSample, RoiAlign; DeformConv is in `deform.py`.

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
TAPS: Final = {"linear": 2, "cubic": 4}  # elements under a filter, per axis
# With 8 channels, GridSample takes 0.83 of the time with channels last, with 4 twice the time
# (Zen 5, two threads, 112x112).
FEW_CHANNELS: Final = 8

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
    last: Sequence[Any] = (),
) -> Expr:
    """The element at integer positions, which may be outside, in float32 or wider.

    lead, last: indices of the axes before and behind.
    """
    inside: list[Expr] = []
    guards: list[Expr] = []
    extents = x.shape[len(lead) : len(x.shape) - len(last)]
    for place, extent in zip(places, extents, strict=True):
        at, guard = outside(place, extent)
        inside.append(clamped(at, extent))
        if guard is not None:
            guards.append(guard)
    load = wide(x[(*lead, *inside, *last)])
    if not guards:
        return load
    return Select(
        reduce(And, guards),
        load,
        const(0, load.dtype),
    )


def channels_last(call: OpCall, x: Buffer) -> Buffer:
    """A buffer for an image with channels last.

    All channels are read at the same positions with the same weights, which are then computed once
    for a vector of channels.
    """
    batch, channels, *extents = x.shape
    return Buffer(f"{call.name}_image", (batch, *extents, channels), x.dtype)


def turned(image: Buffer, x: Buffer) -> Computation:
    """The copy of `x` into that buffer."""
    return map_(image.name, image, lambda n, *i: x[(n, i[-1], *i[:-1])])


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
    last: Sequence[Any] = (),
) -> Expr:
    """The weighted mean of the elements of x around `positions`, `lead` before, `last` behind."""
    firsts, per_axis = zip(*(weights(p) for p in positions), strict=True)
    terms = []
    for taps in product(*(range(len(w)) for w in per_axis)):
        places = [first + t if t else first for first, t in zip(firsts, taps)]
        weight = reduce(mul, (w[t] for w, t in zip(per_axis, taps)))
        element = read(x, lead, places, outside, last)
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
        return mixed(x, lead, positions, self.weights, self.outside)

    @property
    def weights(self) -> Callable[[Expr], tuple[Expr, list[Expr]]]:
        """The filter, which `nearest` has not."""
        return cubic_weights if self.mode == "cubic" else linear_weights

    def term(
        self,
        image: Buffer,
        n: Expr,
        positions: Sequence[Expr],
        channel: Expr,
        taps: Sequence[Expr],
    ) -> Expr:
        """What the element at `taps` under the filter adds to a sample; channels are last."""
        places, factors = [], []
        for tap, position in zip(taps, positions, strict=True):
            first, each = self.weights(position)
            places.append(first + tap)
            *rest, last = enumerate(each, 1)
            chosen = last[1]
            for k, weight in reversed(rest):
                chosen = Select(tap < k, weight, chosen)
            factors.append(chosen)
        element = read(
            image,
            (n,),
            places,
            self.outside,
            (channel,),
        )
        weight = reduce(mul, factors)
        return weight * cast(element, weight.dtype)

    def many(self, out: Buffer) -> bool:
        """Whether vectors of channels gain more than a copy with channels last costs.

        Samples share that copy: where they read fewer elements than it has, it is not worth it.
        """
        channels, *extents = self.call.shape(0)[1:]
        samples = math.prod(out.shape[2:])
        taps = TAPS.get(self.mode, 0)
        reads = samples * taps ** len(extents)
        enough = reads >= math.prod(extents)
        return enough and channels >= FEW_CHANNELS


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
    rank = len(extents)

    def positions(n: Any, o: Sequence[Any]) -> list[Expr]:
        found = []
        for axis, extent in enumerate(extents):
            coordinate = grid[(n, *o, const(rank - 1 - axis))]
            found.append(sampling.settled(wide(coordinate), extent))
        return found

    if not sampling.many(out):

        def value(
            n: Any,
            channel: Any,
            *o: Any,
        ) -> Expr:
            at = positions(n, o)
            found = sampling.value(x, (n, channel), at)
            return cast(found, out.dtype)

        return [map_(call.name, out, value)]
    return _summed(sampling, x, out, positions)


def _summed(
    sampling: _GridSample,
    x: Buffer,
    out: Buffer,
    positions: Callable[[Any, Sequence[Any]], list[Expr]],
) -> list[Computation]:
    """Sums over the elements under the filter, of an image with channels last."""
    call = sampling.call
    rank = len(x.shape) - 2
    image = channels_last(call, x)
    batch, channels, *sizes = out.shape
    work = sampling.work  # not the image's dtype: terms of integers have fractions
    total = Buffer(
        f"{call.name}_sum",
        (batch, *sizes, channels),
        work,
    )

    def term(
        n: Any,
        *i: Any,
    ) -> Expr:
        o = i[:rank]
        channel = i[rank]
        taps = i[rank + 1 :]
        at = positions(n, o)
        found = sampling.term(image, n, at, channel, taps)
        return cast(found, work)

    def result(
        n: Any,
        channel: Any,
        *o: Any,
    ) -> Expr:
        found = total[(n, *o, channel)]
        return cast(found, out.dtype)

    over = [TAPS[sampling.mode]] * rank
    return [
        turned(image, x),
        reduce_(total.name, total, over, "add", term),
        map_(call.name, out, result),
    ]


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


class _RoiAlign:
    """The steps of a RoiAlign: its image with channels last, its samples, their mean or maximum.

    pooled: [regions, *bins, channels].
    """

    def __init__(
        self,
        call: OpCall,
        inputs: Buffers,
        out: Buffer,
    ) -> None:
        x, self.rois, self.batch = inputs[:3]
        self.out = out
        self.samples = call.attr("sampling_ratio", 0)
        mode = call.attr("coordinate_transformation_mode", "half_pixel")
        self.half = call.version >= 16 and mode == "half_pixel"
        self.scale = float(call.attr("spatial_scale", 1.0))
        self.shift = 0.5 if self.half else 0.0
        self.work = wide_dtype(x.dtype)
        self.largest = call.attr("mode", "avg") == "max"
        self.extents = x.shape[2:]
        self.image = channels_last(call, x)
        regions, channels, *bins = out.shape
        self.pooled = Buffer(
            f"{call.name}_pooled",
            (regions, *bins, channels),
            self.work,
        )

    def corner(self, n: Any, column: int) -> Expr:
        """A coordinate of a region, in elements of the image."""
        return wide(self.rois[(n, const(column))]) * self.scale - self.shift

    def position(self, n: Any, bin_: Any, sample: Any, axis: int) -> Expr:
        """Where a sample of a bin is along an axis."""
        first = self.corner(n, 1 - axis)
        width = self.corner(n, 3 - axis) - first
        if not self.half:
            width = Max(width, const(1, self.work))
        step = width / float(self.out.shape[axis + 2])
        middle = cast(sample, self.work) + 0.5
        inner = middle * step / float(self.samples)
        return first + cast(bin_, self.work) * step + inner

    def sample(
        self,
        n: Any,
        row: Any,
        column: Any,
        channel: Any,
        *within: Any,
    ) -> Expr:
        """A sample of a bin; zero outside the image."""
        bins = (row, column)
        work = self.work
        inside: list[Expr] = []
        limited: list[Expr] = []
        for axis, extent in enumerate(self.extents):
            p = self.position(n, bins[axis], within[axis], axis)
            inside += [p >= -1.0, p <= float(extent)]
            not_above = Min(p, const(extent - 1, work))
            limited.append(Max(not_above, const(0, work)))
        lead = (cast(self.batch[n], INDEX),)
        last = (channel,)
        if self.largest:
            found: Expr = _largest_corner(self.image, lead, limited, last)
        else:
            found = mixed(
                self.image,
                lead,
                limited,
                linear_weights,
                or_border,
                last,
            )
        return Select(
            reduce(And, inside),
            cast(found, work),
            const(0, work),
        )

    def result(
        self,
        n: Any,
        channel: Any,
        row: Any,
        column: Any,
    ) -> Expr:
        """The mean of a bin, or its maximum."""
        found: Expr = self.pooled[n, row, column, channel]
        if not self.largest:
            found = found / float(self.samples * self.samples)
        return cast(found, self.out.dtype)


def _roi_align(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation] | None:
    """Requires a fixed sampling ratio; otherwise the number of samples depends on the rois."""
    x = inputs[0]
    if call.attr("sampling_ratio", 0) <= 0 or 0 in x.shape:
        return None
    steps = _RoiAlign(call, inputs, outputs[0])
    reducer = "max" if steps.largest else "add"
    over = (steps.samples, steps.samples)
    return [
        turned(steps.image, x),
        reduce_(steps.pooled.name, steps.pooled, over, reducer, steps.sample),
        map_(call.name, steps.out, steps.result),
    ]


def _largest_corner(
    x: Buffer,
    lead: Sequence[Any],
    positions: Sequence[Expr],
    last: Sequence[Any],
) -> Expr:
    """The largest of the four weighted elements around a position: ONNX's "max" mode."""
    (y0, wy), (x0, wx) = (linear_weights(p) for p in positions)
    found = []
    for a, b in product(range(2), repeat=2):
        corner = read(x, lead, (y0 + a, x0 + b), or_border, last)
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
