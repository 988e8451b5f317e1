"""Stages that are not profitable as one kernel, as several that are."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.compute.merge import merge_dims
from tilewright.compute.nodes import Computation
from tilewright.graph.stages import Stage, Step
from tilewright.targets.base import Target


def apart(steps: Iterable[Step], target: Target) -> list[Step]:
    """The steps, where a group of Computations that makes a slow kernel becomes several kernels.

    A softmax over strided columns is an example: each of its passes is fast on its own.

    requires: nothing but that all Computations stay, in order. What was inside of a Stage is then
    written to memory by one and read by the next, whole or in part, as tensors between any two are.
    """
    found: list[Step] = []
    for step in steps:
        groups = _groups(step.computations, target) if isinstance(step, Stage) else []
        if len(groups) < 2 or not isinstance(step, Stage):
            found.append(step)
            continue
        for n, group in enumerate(groups):
            name = f"{step.name}.{group[-1].name}"
            found.append(Stage(name, tuple(group), step.sources, 0 if n else step.flops))
    return found


def _groups(computations: Iterable[Computation], target: Target) -> list[list[Computation]]:
    """As few profitable groups as there are, in order; one if all of them are."""
    whole = list(computations)
    if len(whole) < 2 or target.is_profitable(merge_dims(whole)[0]):
        return [whole]
    groups = [whole[:1]]
    for c in whole[1:]:
        trial = [*groups[-1], c]
        if target.is_profitable(merge_dims(trial)[0]):
            groups[-1] = trial
        else:
            groups.append([c])
    return groups
