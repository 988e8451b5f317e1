"""The tables of Resample, computed when the model runs, with the extents as plain numbers.

As constants, the tables of two sizes differ in every number. Code for a range of sizes can have the
formulas. ResamplePlaces(x) is the first element of each result along `axis`, and
ResampleWeights(x) the weights of its taps; they use the shape of x alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from tilewright.base.dtypes import float64, int64
from tilewright.compute.build import map_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import INDEX, Buffer, Expr, Max, Select, call, const
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register
from tilewright.graph.ops.resample import (
    ResampledAxis,
    ResampleFilter,
    coordinates,
    nearest,
    taps,
    weighted,
)

DOMAIN: Final = "tilewright"
# Those that depend on nothing but the position and both extents.
COMPUTED: Final = frozenset(
    ("align_corners", "asymmetric", "half_pixel", "pytorch_half_pixel")
)


def _axis(x: OpCall) -> ResampledAxis:
    inputs = x.shape(0)[x.attr("axis")]
    outputs = x.attr("size")
    return ResampledAxis(inputs, outputs, outputs / max(inputs, 1))


def _filter(x: OpCall) -> ResampleFilter:
    return ResampleFilter(x.attr("mode"), x.attr("rounding"), cubic=x.attr("cubic"))


def _place(x: OpCall, o: Expr) -> Expr:
    """The position of result `o` on the input's axis, as `resample.coordinates` has it."""
    axis = _axis(x)
    real = o.astype(float64)
    if x.attr("transformation") == "align_corners":
        step = real * _number(axis.inputs - 1) / _number(axis.outputs - 1)
        return Select(o.eq(0), _number(0), step)
    inputs = _number(axis.inputs)
    outputs = _number(axis.outputs)
    if x.attr("transformation") == "asymmetric":
        return real * inputs / outputs
    return (real + _number(0.5)) * inputs / outputs - _number(0.5)


def _number(value: float) -> Expr:
    return const(float(value), float64)


def _rounded(x: Expr, rounding: str) -> Expr:
    half = _number(0.5)
    match rounding:
        case "round_prefer_floor":
            return call("ceil", x - half)
        case "round_prefer_ceil":
            return call("floor", x + half)
    return call(rounding, x)


def _before(place: Expr) -> Expr:
    """The last element before a position."""
    return call("ceil", place) - _number(1)


def _low(x: OpCall) -> int:
    """The first tap, relative to the element before a position."""
    return 1 - taps(_axis(x), _filter(x)) // 2


def _places(
    x: OpCall, inputs: Sequence[Buffer], outputs: Sequence[Buffer]
) -> list[Computation]:
    how = _filter(x)

    def first(o: Expr) -> Expr:
        place = _place(x, o)
        if how.mode == "nearest":
            found = _rounded(place, how.rounding)
        else:
            found = _before(place) + _number(_low(x))
        return found.astype(int64)

    return [map_(x.name, outputs[0], first)]


def _weights(
    x: OpCall, inputs: Sequence[Buffer], outputs: Sequence[Buffer]
) -> list[Computation]:
    how = _filter(x)
    dtype = outputs[0].dtype

    def weight(o: Expr, t: Expr) -> Expr:
        place = _place(x, o)
        tap = (t + const(_low(x), INDEX)).astype(float64)
        distance = call("abs", tap - (place - _before(place)))
        if how.mode == "cubic":
            return _cubic(distance, how.cubic).astype(dtype)
        return Max(_number(1) - distance, _number(0)).astype(dtype)

    return [map_(x.name, outputs[0], weight)]


def _cubic(t: Expr, a: float) -> Expr:
    """As `resample._cubic`."""
    near = (t * (a + 2) - (a + 3)) * t * t + 1
    far = ((t * a - 5 * a) * t + 8 * a) * t - 4 * a
    return Select(t <= 1, near, Select(t < 2, far, _number(0)))


def _positions(x: OpCall) -> Array:
    return coordinates(_axis(x), x.attr("transformation"))


def _place_arrays(x: OpCall, data: Array) -> list[Array]:
    how, place = _filter(x), _positions(x)
    if how.mode == "nearest":
        return [nearest(place, how.rounding)]
    return [weighted(_axis(x), place, how)[0]]


def _weight_arrays(x: OpCall, data: Array) -> list[Array]:
    found = weighted(_axis(x), _positions(x), _filter(x))[1]
    return [np.asarray(found, data.dtype)]


def _place_type(x: OpCall) -> Sequence[Type]:
    return [(int64, (x.attr("size"),))]


def _weight_type(x: OpCall) -> Sequence[Type]:
    return [(x.dtype(0), (x.attr("size"), taps(_axis(x), _filter(x))))]


_TABLES: Final[Any] = {
    "ResamplePlaces": (_place_type, _places, _place_arrays),
    "ResampleWeights": (_weight_type, _weights, _weight_arrays),
}
for _name, (_type, _compute, _arrays) in _TABLES.items():
    register(
        OpDef(
            _name,
            _type,
            domain=DOMAIN,
            compute=_compute,
            reference=_arrays,
        )
    )
