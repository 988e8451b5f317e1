"""Observers of tensors while data flows through a model, and the ranges that they choose.

An observer sees arrays one after another (`see`) and keeps no more than a histogram. It does not
count numbers that are not finite; `finite` is False once it has seen one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.base.errors import ArgumentError
from tilewright.graph.quantize.affine import AffineQuantization, ValueRange

Array = NDArray[Any]
Quantizer = Callable[[ValueRange], AffineQuantization]

BINS = (
    4096  # bins of magnitudes, on either side of zero; their upper end at most doubles
)
LEAST_LEVELS = 128  # bins of magnitudes that the entropy method distinguishes
_CANDIDATES = 256  # thresholds to try
_SMOOTH = 1e-4  # share of a bin's mass that keeps logarithms finite


class Observer(ABC):
    """Sees arrays and chooses the range to quantize."""

    def __init__(self) -> None:
        self.span = ValueRange()
        self.finite = True
        self.count = 0

    def see(
        self,
        array: Array,
    ) -> None:
        """Count an array of any shape."""
        x = np.asarray(array).reshape(-1)
        fine = np.isfinite(x)
        if not fine.all():
            self.finite = False
            x = x[fine]
        if not x.size:
            return
        self.count += x.size
        self.span = self.span.with_others(ValueRange(float(x.min()), float(x.max())))
        self.tally(x)

    @abstractmethod
    def tally(
        self,
        x: Array,
    ) -> None:
        """Count finite numbers, whose range is already in `span`."""

    @abstractmethod
    def range(
        self,
        quantizer: Quantizer,
    ) -> ValueRange:
        """The range to quantize with `quantizer`; numbers outside it are clipped."""


class MinMax(Observer):
    """The full range seen: nothing is clipped."""

    def tally(
        self,
        x: Array,
    ) -> None:
        pass  # `span` is enough

    def range(
        self,
        quantizer: Quantizer,
    ) -> ValueRange:
        return self.span


class Histogram(Observer):
    """Counts magnitudes in bins of equal width, with negative numbers counted separately.

    below, above: int64 [BINS]; bin n holds n * width <= |x| < (n + 1) * width, and the last one
    includes its upper end. The first numbers set the width; if larger ones come, neighbors are
    merged and the width doubles, so that every count stays exact.
    """

    def __init__(self) -> None:
        super().__init__()
        self.below = np.zeros(BINS, np.int64)
        self.above = np.zeros(BINS, np.int64)
        self.width = 0.0

    def tally(
        self,
        x: Array,
    ) -> None:
        largest = self.span.largest
        if self.width == 0:
            self.width = largest / BINS
        while largest > self.width * BINS and self.width > 0:
            self.below = _merged(self.below)
            self.above = _merged(self.above)
            self.width *= 2
        negative = x < 0
        self.below += self._bins(x[negative])
        self.above += self._bins(x[~negative])

    def _bins(
        self,
        x: Array,
    ) -> Array:
        if self.width == 0:  # only zeros
            places = np.zeros(x.size, np.int64)
        else:
            places = (np.abs(x.astype(np.float64)) / self.width).astype(np.int64)
        return np.bincount(np.minimum(places, BINS - 1), minlength=BINS)

    @property
    def magnitudes(self) -> Array:
        """Counts by magnitude, up to the last nonempty bin."""
        both = self.below + self.above
        used = np.flatnonzero(both)
        return both[: used[-1] + 1] if used.size else both[:1]

    def up_to(
        self,
        bins: float,
    ) -> ValueRange:
        """The range of magnitudes in the first `bins` bins."""
        return self.span.within(bins * self.width)


def _merged(counts: Array) -> Array:
    pairs = counts.reshape(-1, 2).sum(1)
    return np.concatenate([pairs, np.zeros_like(pairs)])


class Percentile(Histogram):
    """The range that contains a given percentage of the numbers.

    A symmetric range cuts off the largest magnitudes; any other cuts off half of the rest at each
    end.
    """

    def __init__(
        self,
        percent: float = 99.99,
    ) -> None:
        super().__init__()
        if not 0 < percent <= 100:
            raise ArgumentError(
                f"the percentile is {percent}", hint="more than 0, at most 100"
            )
        self.percent = percent

    def range(
        self,
        quantizer: Quantizer,
    ) -> ValueRange:
        if _is_symmetric(quantizer):
            return self.up_to(_bins_for(self.magnitudes, self.percent))
        tail = 100 - (100 - self.percent) / 2
        seen = np.concatenate([self.below[::-1], self.above])
        high = _bins_for(seen, tail) - BINS
        low = BINS - _bins_for(seen[::-1], tail)
        return ValueRange(
            max(self.span.low, min(low * self.width, 0.0)),
            min(self.span.high, max(high * self.width, 0.0)),
        )


def _bins_for(
    counts: Array,
    percent: float,
) -> int:
    """The fewest first bins that hold a given percentage of all numbers."""
    total = counts.sum()
    # Counts are integers, so a difference below rounding does not matter.
    wanted = total * (percent / 100) - 1e-9 * total
    return int(np.searchsorted(np.cumsum(counts), wanted)) + 1


class Entropy(Histogram):
    """The threshold at which quantizing the histogram loses the least information.

    The reference P is the histogram up to the threshold, with everything beyond it in the last bin.
    Q is the same histogram without that, merged into as many levels as bytes have, with each
    level's mass spread over its nonempty bins. The threshold with the least KL(P || Q) is chosen.
    (Migacz, 8-bit inference with TensorRT, GTC 2017.) Zeros are not counted: every threshold keeps
    them, and after a Relu their mass would hide the loss of all others.
    """

    def tally(
        self,
        x: Array,
    ) -> None:
        super().tally(x[x != 0])

    def range(
        self,
        quantizer: Quantizer,
    ) -> ValueRange:
        # Merge pairs of bins, as single counts in many bins are noise.
        counts = _merged(self.below + self.above)[: BINS // 2]
        counts = counts[: np.flatnonzero(counts).max(initial=0) + 1]
        one_sided = self.span.low == 0 and not _is_symmetric(quantizer)
        levels = 2 * LEAST_LEVELS if one_sided else LEAST_LEVELS
        if len(counts) <= levels:
            return self.span
        step = max(1, len(counts) // _CANDIDATES)
        ends = [*range(levels, len(counts), step), len(counts)]
        best = min(ends, key=lambda n: (divergence(counts, n, levels), -n))
        return self.up_to(2 * (best + 0.5) if best < len(counts) else BINS)


def divergence(
    counts: Array,
    bins: int,
    levels: int,
) -> float:
    """KL(P || Q) for a threshold after this many bins of a histogram; see `Entropy`."""
    kept = counts[:bins].astype(np.float64)
    p = kept.copy()
    p[-1] += counts[bins:].sum()
    level = np.arange(bins) * levels // bins
    filled = kept > 0
    mass = np.bincount(level, kept, levels)
    shares = np.bincount(level, filled, levels)
    q = np.where(filled, (mass / np.maximum(shares, 1))[level], 0.0)
    if not q.any():
        return np.inf
    p, q = _smoothed(p), _smoothed(q)
    return float((p * np.log(p / q)).sum())


def _smoothed(p: Array) -> Array:
    """A distribution without zeros, close to `p` normalized to the sum 1."""
    p = p / p.sum()
    zeros = p == 0
    if not zeros.any():
        return p
    least = _SMOOTH / p.size
    given = least * zeros.sum()
    return np.where(zeros, least, p * (1 - given))


class SquaredError(Histogram):
    """The threshold with the least mean squared error of rounding plus clipping."""

    def range(
        self,
        quantizer: Quantizer,
    ) -> ValueRange:
        steps = np.linspace(1.0, 1 / 16, 61)
        candidates = [self.span.within(self.span.largest * f) for f in steps]
        return min(candidates, key=lambda span: self.error(quantizer(span)))

    def error(
        self,
        kept: AffineQuantization,
    ) -> float:
        """The sum of squared errors of everything seen, with each number at its bin's middle."""
        middles = (np.arange(BINS) + 0.5) * self.width
        found = 0.0
        for counts, sign in ((self.below, -1.0), (self.above, 1.0)):
            x = sign * middles[counts > 0]
            lost = x - kept.rounded(x)
            found += float(counts[counts > 0] @ (lost * lost))
        return found


def _is_symmetric(quantizer: Quantizer) -> bool:
    return quantizer(ValueRange(0.0, 1.0)).dtype == np.int8


METHODS: Mapping[str, Callable[[], Observer]] = {
    "min-max": MinMax,
    "percentile": Percentile,
    "entropy": Entropy,
    "mse": SquaredError,
}


def observer_of(
    method: str,
    percentile: float | None = None,
) -> Callable[[], Observer]:
    """Makes observers of a method. Raises InputError for an unknown method."""
    if method not in METHODS:
        raise ArgumentError(
            f"unknown calibration method {method!r}",
            hint=f"one of {', '.join(METHODS)}",
        )
    if percentile is None:
        return METHODS[method]
    if method != "percentile":
        raise ArgumentError(
            f"a percentile is given for the method {method!r}",
            hint="leave it out, or choose the method percentile",
        )
    Percentile(percentile)
    return lambda: Percentile(percentile)
