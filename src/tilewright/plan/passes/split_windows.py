"""Splitting convolutions by window position where most products are with padding.

Each position of the window becomes one product, over the results for which it reads data, and a map
adds these up. What follows the convolution stays with that map.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.base import events
from tilewright.compute.contraction import is_contraction
from tilewright.compute.split_window import WindowParts, split_window
from tilewright.expr.nodes import Buffer
from tilewright.plan.nodes import FusionGroup, Step
from tilewright.plan.questions import Cost

Data = Mapping[Buffer, np.ndarray[Any, Any]]


def split_windows(
    steps: Sequence[Step], data: Data, cost: Cost, gain: float
) -> list[Step]:
    """The steps, with convolutions split by the law of `compute/split_window.py` where profitable.

    data: the constants. cost: the target's estimate of Computations with constants as one kernel in
    nanoseconds, None if another form is better. gain: part of a convolution's time that its
    positions and their total may take, at most.

    requires: the factors of the padding are finite constants; what follows the sum reads the
    positions only through their total, which holds because their tensors are new.
    """
    found: list[Step] = []
    for step in steps:
        made = _split(step, data, cost, gain)
        found += [step] if made is None else made
    return found


def _split(step: Step, data: Data, cost: Cost, gain: float) -> list[Step] | None:
    if not isinstance(step, FusionGroup) or not step.computations:
        return None
    first, *rest = step.computations
    if not is_contraction(first) or not all(c.is_map for c in rest):
        return None
    parts = split_window(first)
    if parts is None or not _finite(parts, data):
        return None
    whole = cost((first,), data)
    several = [cost((c,), data) for c in (*parts.sums, parts.total)]
    known = [t for t in several if t is not None]
    if whole is None or len(known) < len(several):
        return None
    # Of a map each point counts once; the total reads as many tensors as there are sums.
    again = known[-1] * (len(parts.sums) - 1)
    if sum(known) + again >= gain * whole:
        return None
    events.emit("split-window", stage=step.name, parts=len(parts.sums))
    groups = [
        FusionGroup(
            f"{step.name} at {n}",
            (c,),
            step.sources,
            2 * math.prod(d.extent for d in c.dims),
        )
        for n, c in enumerate(parts.sums)
    ]
    total = replace(step, computations=(parts.total, *rest), flops=0)
    return [*groups, total]


def _finite(parts: WindowParts, data: Data) -> bool:
    return all(b in data and np.isfinite(data[b]).all() for b in parts.factors)
