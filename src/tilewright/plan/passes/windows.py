"""Pooling along one axis after another, if the target expects that to be faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.base import events
from tilewright.compute.reducer import Reducer, reducer
from tilewright.compute.separable_windows import separate
from tilewright.plan.nodes import FusionGroup, Step
from tilewright.plan.questions import Cost


def separate_windows(steps: Sequence[Step], cost: Cost, exact: bool) -> list[Step]:
    """The steps, with window reductions separated by axis where profitable.

    cost: the target's estimate of Computations as one kernel in nanoseconds, None if it cannot
    handle them well. exact: sums and products, which round, keep their order.
    """
    return [
        _separated(s, cost, exact) if isinstance(s, FusionGroup) else s for s in steps
    ]


def _rounds(op: Reducer) -> bool:
    """Whether the order of terms matters: for floats, unless it is a maximum or minimum."""
    t = op.dtypes[0]
    extremes = ("max", "min", "max_number")
    free = len(op.dtypes) == 1 and any(
        op.does_as(reducer(name, t)) for name in extremes
    )
    return t.is_float and not free


def _separated(stage: FusionGroup, cost: Cost, exact: bool) -> FusionGroup:
    if not stage.computations or len(stage.computations) > 2:
        return stage
    first, *rest = stage.computations
    if first.reducer is None or (exact and _rounds(first.reducer)):
        return stage
    parts = separate(first)
    if parts is None:
        return stage
    group = (*parts, *rest)
    before, after = map(cost, (stage.computations, group))
    if after is None or (before is not None and before <= after):
        return stage
    events.emit("separated", stage=stage.name)
    return replace(stage, computations=group)
