"""Splitting groups that are not profitable as one kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tilewright.compute.nodes import Computation
from tilewright.plan.nodes import FusionGroup, Step

IsProfitable = Callable[[Sequence[Computation]], bool]


def split_groups(steps: Iterable[Step], is_profitable: IsProfitable) -> list[Step]:
    """The steps, where a group of Computations that makes a slow kernel becomes several kernels.

    A softmax over strided columns is an example: each of its passes is fast on its own.
    is_profitable: whether Computations should be one kernel.

    requires: nothing but that all Computations stay, in order. What was inside a group is then
    written to memory by one and read by the next, whole or in part, as tensors between any two are.
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
    """As few profitable groups as there are, in order; one if all of them together are."""
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
