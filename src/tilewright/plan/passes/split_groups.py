"""Splitting groups that are not profitable as one kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tilewright.compute.nodes import Computation
from tilewright.plan.nodes import FusionGroup, Step

IsProfitable = Callable[[Sequence[Computation]], bool]


def split_groups(steps: Iterable[Step], is_profitable: IsProfitable) -> list[Step]:
    """The steps, with groups of Computations that make a slow kernel split into several kernels.

    For example, each pass of a softmax over strided columns is fast by itself. is_profitable:
    whether Computations should be one kernel.

    requires: only that all Computations stay, in order. Tensors inside a group then go through
    memory, in whole or in part, like those between any two groups.
    """
    found: list[Step] = []
    for step in steps:
        groups = (
            _groups(step.computations, is_profitable)
            if isinstance(step, FusionGroup)
            else []
        )
        if len(groups) < 2 or not isinstance(step, FusionGroup):
            found.append(step)
            continue
        for n, group in enumerate(groups):
            name = f"{step.name}.{group[-1].name}"
            found.append(
                FusionGroup(
                    name=name,
                    computations=tuple(group),
                    sources=step.sources,
                    flops=0 if n else step.flops,
                )
            )
    return found


def _groups(
    computations: Iterable[Computation], is_profitable: IsProfitable
) -> list[list[Computation]]:
    """The fewest profitable groups, in order; a single one if all together are profitable."""
    whole = list(computations)
    if len(whole) < 2 or is_profitable(whole):
        return [whole]
    groups = [whole[:1]]
    for c in whole[1:]:
        trial = [*groups[-1], c]
        if is_profitable(trial):
            groups[-1] = trial
        else:
            groups.append([c])
    return groups
