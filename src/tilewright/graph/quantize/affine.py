"""Integers for real numbers: `x = scale * (q - zero)`, and how scales follow from ranges.

Rounding follows ONNX's QuantizeLinear: `q = clip(round_half_even(x / scale) + zero)`, the
quotient in float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError

Array = NDArray[Any]
# A scale below this counts as zero: the product of two such scales underflows float32.
LEAST = 2.0**-60


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The numbers from low to high, including 0, so that 0 is exact in integers."""

    low: float = 0.0
    high: float = 0.0

    @property
    def largest(self) -> float:
        """The largest magnitude."""
        return max(-self.low, self.high)

    def with_others(
        self,
        other: ValueRange,
    ) -> ValueRange:
        """The smallest range that contains both."""
        return ValueRange(min(self.low, other.low), max(self.high, other.high))

    def within(
        self,
        threshold: float,
    ) -> ValueRange:
        """The part with magnitudes up to the threshold."""
        return ValueRange(max(self.low, -threshold), min(self.high, threshold))


@dataclass(frozen=True, slots=True)
class AffineQuantization:
    """One tensor's quantization: scale (float32) and zero point, which has the integers' dtype."""

    scale: np.float32
    zero: np.integer[Any]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the integers."""
        return self.zero.dtype

    def whole(
        self,
        x: Array,
    ) -> Array:
        """Quantize real numbers to integers."""
        limits = np.iinfo(self.dtype)
        with np.errstate(all="ignore"):
            q = np.rint(x.astype(np.float32) / self.scale) + np.float32(self.zero)
        return np.asarray(np.clip(q, limits.min, limits.max).astype(self.dtype))

    def real(
        self,
        q: Array,
    ) -> Array:
        """Dequantize integers to float32."""
        centered = q.astype(np.int32) - np.int32(self.zero)
        return np.asarray(centered.astype(np.float32) * self.scale)

    def rounded(
        self,
        x: Array,
    ) -> Array:
        """`x` quantized and dequantized."""
        return self.real(self.whole(x))


def symmetric(span: ValueRange) -> AffineQuantization:
    """int8, -127 to 127, for minus to plus the largest magnitude."""
    return AffineQuantization(_scale(span.largest / 127), np.int8(0))


def asymmetric(span: ValueRange) -> AffineQuantization:
    """uint8, 0 to 255 for low to high."""
    scale = _scale((span.high - span.low) / 255)
    zero = np.clip(np.rint(-span.low / float(scale)), 0, 255)
    return AffineQuantization(scale, np.uint8(zero))


ACTIVATIONS: Mapping[str, Any] = {"uint8": asymmetric, "int8": symmetric}


def activations_in(name: str) -> Any:
    """Range -> Affine for a dtype. Raises InputError for an unknown one."""
    if name not in ACTIVATIONS:
        raise InputError(
            f"activations are not quantized to {name!r}",
            hint=f"one of {', '.join(ACTIVATIONS)}",
        )
    return ACTIVATIONS[name]


def _scale(step: float) -> np.float32:
    """The step as a scale; 1 if all numbers are zero, or nearly so."""
    return np.float32(step if step >= LEAST else 1.0)


# ------------------------------------------------------------------------------------ units by bits


def most(bits: int) -> int:
    """The largest signed number with this many bits."""
    return (1 << bits - 1) - 1


def power_of_two(
    largest: float,
    bits: int = 8,
) -> float:
    """The least power of two that scales the largest number into a number of bits."""
    if largest > 0:
        return 2.0 ** math.ceil(math.log2(largest / most(bits)))
    return 1.0


def whole_byte(
    largest: float,
    bits: int = 8,
) -> float:
    """The unit that maps the largest number to the largest integer of a number of bits."""
    if largest > 0:
        return largest / most(bits)
    return 1.0


# ----------------------------------------------------------------------------------------- weights


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights in int8, symmetric, with a scale for each channel along an axis.

    whole: int8, the shape of the weights. scales: float32 [channels].
    """

    whole: Array
    scales: Array
    axis: int

    @property
    def real(self) -> Array:
        """The real numbers that they represent, in float32."""
        shape = along(self.axis, self.whole.ndim)
        return np.asarray(self.whole.astype(np.float32) * self.scales.reshape(shape))


def along(
    axis: int,
    rank: int,
) -> tuple[int, ...]:
    """The shape that broadcasts a vector along one axis of a tensor of that rank."""
    return tuple(-1 if n == axis else 1 for n in range(rank))


def channel_scales(
    w: Array,
    axis: int,
) -> Array:
    """A scale per channel along an axis, from its largest magnitude; float32 [channels]."""
    others = tuple(n for n in range(w.ndim) if n != axis)
    largest = np.abs(w).max(others, initial=0).astype(np.float64)
    return np.array([_scale(float(n) / 127) for n in largest], np.float32)


def round_weights(
    w: Array,
    axis: int,
) -> Weights:
    """Round each weight to the nearest multiple of its channel's scale."""
    scales = channel_scales(w, axis)
    steps = scales.reshape(along(axis, w.ndim))
    whole = np.clip(np.rint(w.astype(np.float32) / steps), -127, 127)
    return Weights(whole.astype(np.int8), scales, axis)
