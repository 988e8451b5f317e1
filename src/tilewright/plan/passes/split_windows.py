"""Splitting convolutions by window position where most products are with padding.

Each position of the window becomes one product, over the results for which it reads data, and a map
adds these up. What follows the convolution stays with that map.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from tilewright.base import events
from tilewright.compute.contraction import is_contraction
from tilewright.compute.split_window import WindowParts, split_window
from tilewright.expr.nodes import Buffer
from tilewright.plan.decisions import WINDOWS, Refused, ignored
from tilewright.plan.nodes import FusionGroup, Step
from tilewright.plan.questions import Cost

Data = Mapping[Buffer, np.ndarray[Any, Any]]


def split_windows(
    steps: Sequence[Step],
    data: Data,
    cost: Cost,
    gain: float,
    named: Mapping[FusionGroup, str] = MappingProxyType({}),
    refused: Refused = ignored,
) -> list[Step]:
    """The steps, with convolutions split by the law of `compute/split_window.py` where profitable.

    data: the constants. cost: the target's estimate of Computations with constants as one kernel in
    nanoseconds, None if another form is better. gain: part of a convolution's time that its
    positions and their total may take, at most. named: groups whose form is named, whatever it
    costs; see `plan.decisions`. refused: called for those that cannot be split, and stay whole.

    requires: the factors of the padding are finite constants; what follows the sum reads the
    positions only through their total, which holds because their tensors are new.
    """
    found: list[Step] = []
    for step in steps:
        if not isinstance(step, FusionGroup):
            found.append(step)
            continue
        name = named.get(step)
        parts = _parts(step, data) if name in (None, WINDOWS) else None
        if name is None and parts and not _pays(step, parts, data, cost, gain):
            parts = None
        if name == WINDOWS and parts is None:
            refused(step, name)
        found += [step] if parts is None else _split(step, parts)
    return found


def _parts(step: FusionGroup, data: Data) -> WindowParts | None:
    """A convolution by the positions of its window; None if it cannot be split."""
    if not step.computations:
        return None
    first, *rest = step.computations
    if not is_contraction(first) or not all(c.is_map for c in rest):
        return None
    parts = split_window(first)
    return parts if parts is not None and _finite(parts, data) else None


def _pays(
    step: FusionGroup, parts: WindowParts, data: Data, cost: Cost, gain: float
) -> bool:
    """Whether the parts are expected to take less than `gain` of the time of the whole."""
    whole = cost(step.computations[:1], data)
    several = [cost((c,), data) for c in (*parts.sums, parts.total)]
    known = [t for t in several if t is not None]
    if whole is None or len(known) < len(several):
        return False
    # Of a map each point counts once; the total reads as many tensors as there are sums.
    again = known[-1] * (len(parts.sums) - 1)
    return sum(known) + again < gain * whole


def _split(step: FusionGroup, parts: WindowParts) -> list[Step]:
    """A group for each position, and the total with what follows it."""
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
    behind = step.computations[1:]
    total = replace(step, computations=(parts.total, *behind), flops=0)
    return [*groups, total]


def _finite(parts: WindowParts, data: Data) -> bool:
    return all(b in data and np.isfinite(data[b]).all() for b in parts.factors)
