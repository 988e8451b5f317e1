"""Dynamic loss scaling: derivatives that float16 would round to zero are scaled into its range.

    g = (d (scale * loss) / d p) / scale

A step in which some g is infinite or NaN is skipped and lowers the scale; many steps in a row
without one raise it.

Source: Micikevicius et al., "Mixed precision training", ICLR 2018; the numbers are those of
PyTorch's GradScaler.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import float32
from tilewright.base.errors import ExecutionError, InputError
from tilewright.graph.nodes import Value
from tilewright.graph.ops.fragment import Fragment

_LARGEST = float(np.finfo(np.float32).max)
_SMALLEST = float(np.finfo(np.float32).tiny)  # of full precision


@dataclass(frozen=True)
class LossScale:
    """How the scale of a loss changes.

    initial: the first scale. growth: its factor after `interval` steps in a row with finite
    gradients. backoff: its factor after a step without. Raises InputError for a number that is out
    of range.
    """

    initial: float = 65536.0
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000

    def __post_init__(self) -> None:
        self._check("initial", _SMALLEST, _LARGEST)
        self._check("growth", 1, _LARGEST)
        self._check("backoff", _SMALLEST, 1)
        if self.backoff == 1:
            raise InputError(
                f"LossScale: backoff={self.backoff!r}",
                hint="less than 1: a scale that is not lowered skips every step",
            )
        if type(self.interval) is not int or self.interval < 1:
            raise InputError(f"LossScale: interval={self.interval!r}", hint="1 or more")

    def _check(self, name: str, least: float, most: float) -> None:
        value = getattr(self, name)
        if not isinstance(value, int | float) or not least <= value <= most:
            raise InputError(
                f"LossScale: {name}={value!r}", hint=f"{least:g} to {most:g}"
            )

    def after(self, scale: float, good: int, finite: bool) -> tuple[float, int]:
        """The scale after a step, and the number of steps with finite gradients since it changed.

        scale, good: the same before the step. finite: whether its gradients were. Raises
        ExecutionError if the scale leaves the range of float32, as then no scale helps.
        """
        if not finite:
            scale *= self.backoff
            if scale < _SMALLEST:
                raise ExecutionError(
                    "gradients are infinite or NaN at every loss scale",
                    hint="the training diverges, or a batch has such numbers",
                )
            return scale, 0
        if good + 1 < self.interval:
            return scale, good + 1
        raised = scale * self.growth
        if raised > _LARGEST:
            return scale, 0
        return raised, 0


def scaled_loss(f: Fragment, loss: Value, scale: Value) -> Value:
    """The loss times the scale, in the loss's type."""
    factor = f.op("CastLike", scale, loss)
    product = f.term(loss) * factor
    return product.value


def unscaled(f: Fragment, gradients: Sequence[Value], scale: Value) -> list[Value]:
    """The gradients of the loss from those of the scaled loss."""
    found = []
    for g in gradients:
        divisor = f.op("CastLike", scale, g)
        quotient = f.term(g) / divisor
        found.append(quotient.value)
    return found


def all_finite(f: Fragment, gradients: Sequence[Value]) -> Value:
    """Whether all elements are finite: a float32 scalar, 1 or 0."""
    worst = []
    for g in gradients:
        size = abs(f.term(g))
        finite = size < math.inf  # not so for NaN
        least = finite.cast(float32).op("ReduceMin", keepdims=0)
        worst.append(least.value)
    if len(worst) == 1:
        return worst[0]
    return f.op("Min", *worst)
