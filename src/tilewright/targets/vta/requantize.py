"""Requantization of sums to 8 bits in integers: a shift, or a multiplier between two shifts.

    y = clip((((sum + bias) >> before) * factor + residual * scaled) >> shift, low, 127)

The machine's products keep the low 32 bits and its constants have 16, so that a factor is usable
only if it is proved from a bound on the sums that nothing overflows. A factor for each channel is
no constant but an accumulator, and has 32 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dataclass import dataclass

Reals = NDArray[np.float64]
Wholes = NDArray[np.int64]

SUMS = (1 << 31) - 1  # the largest accumulator
FACTORS = range(1, 1 << 15)  # constants that are positive
_BYTE = 128
_SHIFTS = range(32)
_BEFORE = range(25)


@dataclass(frozen=True, slots=True)
class RequantizeSteps:
    """The numbers in the formula; residual: the factor of a second operand.

    half: added to every sum, so that the result is rounded to nearest. error: the maximum error of
    the result besides that rounding, in units of the bytes.
    """

    before: int
    factor: int
    shift: int
    residual: int | None
    half: int
    error: float = 0.0

    def fits(self, bound: int) -> bool:
        """Whether no step overflows for sums, bias included, of at most `bound`."""
        if not (bound + self.half <= SUMS):
            return False
        return self.largest(bound) <= SUMS

    def largest(self, bound: int) -> int:
        """The largest number that sums of at most `bound` can become before the last shift."""
        shifted = (
            (bound + self.half) >> self.before
        ) + 1  # a negative one is rounded down
        return shifted * self.factor + _BYTE * (self.residual or 0)


def by_shift(
    ratio: float, residual: float | None, bound: int
) -> RequantizeSteps | None:
    """The shift that is `ratio`, a power of two at most 1; None where there is none.

    ratio: of the sums' unit to the result's. residual: of a second operand's unit to the result's.
    """
    shift = -round(math.log2(ratio))
    more = None if residual is None else round(math.log2(residual)) + shift
    if shift not in _SHIFTS:
        return None
    if more is not None and not 0 <= more < 24:
        return None
    half = 1 << shift >> 1
    steps = RequantizeSteps(
        before=0,
        factor=1,
        shift=shift,
        residual=None if more is None else 1 << more,
        half=half,
    )
    if steps.fits(bound):
        return steps
    return None


def by_multiplier(
    ratio: float, residual: float | None, bound: int
) -> RequantizeSteps | None:
    """The numbers whose result is the nearest to the real one; None where none are safe."""
    found = [s for s in _candidates(ratio, residual) if s.fits(bound)]
    return min(found, key=lambda s: (s.error, s.before), default=None)


def _candidates(ratio: float, residual: float | None) -> Iterator[RequantizeSteps]:
    for shift in _SHIFTS:
        scaled = None if residual is None else round(math.ldexp(residual, shift))
        if scaled is not None and scaled not in FACTORS:
            continue
        for before in _BEFORE:
            factor = round(math.ldexp(ratio, before + shift))
            if factor in FACTORS:
                half = round(((1 << shift) / 2 / factor + 0.5) * (1 << before) - 0.5)
                error = _error(ratio, residual, before, factor, shift, scaled)
                yield RequantizeSteps(
                    before=before,
                    factor=factor,
                    shift=shift,
                    residual=scaled,
                    half=half,
                    error=error,
                )


def _error(
    ratio: float,
    residual: float | None,
    before: int,
    factor: int,
    shift: int,
    scaled: int | None,
) -> float:
    """What rounding the factors makes of a byte, and the bits that `before` cuts off."""
    found = _BYTE * abs(math.ldexp(factor, -before - shift) / ratio - 1)
    if residual is not None and scaled is not None:
        found += _BYTE * abs(math.ldexp(scaled, -shift) - residual)
    if before:
        cut = math.ldexp(factor, -shift) / 2
    else:
        cut = 0.0
    return found + cut + ratio / 2  # half is a whole number, too


def by_channel(
    ratios: Reals, residual: float | None, bounds: Wholes
) -> Sequence[RequantizeSteps] | None:
    """The numbers for sums with a unit for each channel, alike in all but `factor` and `half`.

    Those whose worst channel is nearest to the real one; None where none are safe.
    """
    found = (
        _of_channels(ratios, residual, bounds, *n) for n in product(_BEFORE, _SHIFTS)
    )
    safe = [steps for steps in found if steps is not None]
    return min(safe, key=lambda steps: max(s.error for s in steps), default=None)


def _of_channels(
    ratios: Reals, residual: float | None, bounds: Wholes, before: int, shift: int
) -> Sequence[RequantizeSteps] | None:
    """The numbers for these shifts, if they are safe."""
    scaled = None if residual is None else round(math.ldexp(residual, shift))
    factors = np.maximum(1, np.rint(np.ldexp(ratios, before + shift)))
    if factors.max() > SUMS:
        return None
    if scaled is not None and scaled not in FACTORS:
        return None
    halves = np.rint((2.0 ** (shift - 1) / factors + 0.5) * (1 << before) - 0.5)
    # What a byte can be off by is at most what there is in a channel.
    most = np.minimum(_BYTE, bounds * ratios)
    errors = most * np.abs(np.ldexp(factors, -before - shift) / ratios - 1) + ratios / 2
    if before:
        errors += np.ldexp(factors, -shift) / 2
    if residual is not None and scaled is not None:
        errors += _BYTE * abs(math.ldexp(scaled, -shift) - residual)
    made = [
        RequantizeSteps(
            before=before,
            factor=int(factor),
            shift=shift,
            residual=scaled,
            half=int(half),
            error=float(error),
        )
        for factor, half, error in zip(factors, halves, errors, strict=True)
    ]
    fits = all(s.fits(int(bound)) for s, bound in zip(made, bounds, strict=True))
    return made if fits else None


def _of_all(find: Callable[[float, float | None, int], RequantizeSteps | None]) -> Find:
    """The same numbers for all channels, whose sums have one unit."""

    def found(
        ratios: Reals, residual: float | None, bounds: Wholes
    ) -> Sequence[RequantizeSteps] | None:
        steps = find(float(ratios[0]), residual, int(bounds.max()))
        if steps is None:
            return None
        return [steps] * len(ratios)

    return found


Find = Callable[[Reals, float | None, Wholes], Sequence[RequantizeSteps] | None]
STEPS: Mapping[str, Find] = {
    "shift": _of_all(by_shift),
    "multiplier": _of_all(by_multiplier),
    "channel": by_channel,
}
