"""Tables of separable resampling: the input elements that each result combines, with weights.

    x(o)  = the position of the o-th result on the input's axis (the coordinate transformation)
    first = the first element under the filter there; weight(o, t) belongs to element first(o) + t

Filters and coordinates follow ONNX's Resize.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.graph.ops.registry import Array

ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}

TRANSFORMATIONS = (
    "align_corners",
    "asymmetric",
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "tf_crop_and_resize",
)


@dataclass(frozen=True)
class ResampledAxis:
    """How one axis is resized. scale: result over input. roi: the window of tf_crop_and_resize."""

    inputs: int
    outputs: int
    scale: float
    roi: tuple[float, float] = (0.0, 1.0)

    @property
    def idle(self) -> bool:
        """Whether the result equals the input."""
        return (
            self.inputs == self.outputs and self.scale == 1.0 and self.roi == (0.0, 1.0)
        )


@dataclass(frozen=True)
class ResampleFilter:
    """mode: nearest, linear or cubic; the other fields are the attributes of Resize."""

    mode: str
    rounding: str = "round_prefer_floor"
    antialias: bool = False
    cubic: float = -0.75
    exclude_outside: bool = False


def coordinates(axis: ResampledAxis, transformation: str) -> Array:
    """x(o) for every result, float64.

    With a scale that is result over input but for rounding to float32, the extents are used
    instead, so that a position that is whole is a whole number.
    """
    o = np.arange(axis.outputs, dtype=np.float64)
    length = axis.inputs
    exact = axis.scale * length
    is_ratio = math.isclose(exact, axis.outputs, rel_tol=2**-23)
    if is_ratio:
        exact = axis.outputs
    start, end = axis.roi

    def scaled(x: Array) -> Array:
        return x * length / axis.outputs if is_ratio else x / axis.scale

    match transformation:
        case "align_corners":
            if exact == 1:
                return o * 0
            return o * (length - 1) / (exact - 1)
        case "asymmetric":
            return scaled(o)
        case "tf_crop_and_resize":
            middle = (end - start) * (length - 1) / 2
            if exact == 1:
                step = middle
            else:
                step = (end - start) * (length - 1) / (exact - 1)
            return start * (length - 1) + (o * 0 + middle if exact == 1 else o * step)
        case "pytorch_half_pixel" if exact == 1:
            return o * 0 - 0.5
        case "half_pixel_symmetric":
            offset = length / 2 * (1 - axis.outputs / exact)
            return offset + scaled(o + 0.5) - 0.5
    return scaled(o + 0.5) - 0.5


def outside(axis: ResampledAxis, x: Array) -> Array | None:
    """Where tf_crop_and_resize reads outside the input; None for none."""
    found: Array = (x < 0) | (x > axis.inputs - 1)
    return found if found.any() else None


def nearest(x: Array, rounding: str) -> Array:
    """The index of the element that each result copies, not yet clamped to the axis; int64."""
    return ROUNDINGS[rounding](x).astype(np.int64)


def _low(axis: ResampledAxis, how: ResampleFilter) -> tuple[int, float]:
    """The first tap, relative to the element before a result, and how much the filter widens."""
    reach = 2 if how.mode == "cubic" else 1
    shrink = min(axis.scale, 1.0) if how.antialias else 1.0
    return math.floor(-reach / shrink) + 1, shrink


def taps(axis: ResampledAxis, how: ResampleFilter) -> int:
    """The number of elements that each result combines."""
    if how.mode == "nearest":
        return 1
    return 2 - 2 * _low(axis, how)[0]


def weighted(
    axis: ResampledAxis,
    x: Array,
    how: ResampleFilter,
) -> tuple[Array, Array]:
    """first(o), int64, not yet clamped to the axis, and weight(o, t), float64."""
    before = np.ceil(x).astype(np.int64) - 1
    low, shrink = _low(axis, how)
    offsets = np.arange(low, 2 - low)
    distance = np.abs(offsets[None, :] - (x - before)[:, None]) * shrink
    if how.mode == "cubic":
        weights = _cubic(distance, how.cubic)
    else:
        weights = np.clip(1 - distance, 0, 1)
    if how.antialias:
        weights = weights / weights.sum(1, keepdims=True)
    if how.exclude_outside:
        places = before[:, None] + offsets[None, :]
        weights = np.where((places < 0) | (places >= axis.inputs), 0.0, weights)
        total = weights.sum(1, keepdims=True)
        weights = weights / np.where(total == 0, 1.0, total)
    return before + low, weights


def _cubic(t: Array, a: float) -> Array:
    """Keys' cubic convolution kernel at distances t >= 0."""
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0.0))


def as_line(table: Array) -> tuple[int, int, int] | None:
    """(a, b, d) with `table[o] == (a * o + b) // d` for every o; None if there is none.

    Indexing by a line is cheaper than by a table, and bounds can be proved for it.
    """
    if len(table) < 2:
        return (0, int(table[0]) if len(table) else 0, 1)
    o = np.arange(len(table))
    middle = Fraction(int(table[-1] - table[0]), len(table) - 1)
    for limit in (1, 2, 3, 4, 8, 16, 64, 1024):
        slope = middle.limit_denominator(limit)
        a, d = slope.numerator, slope.denominator
        rest = table * d - a * o
        if rest.max() < rest.min() + d:
            return a, int(rest.max()), d
    return None
