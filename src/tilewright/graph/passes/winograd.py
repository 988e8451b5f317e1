"""Winograd's convolutions where they pay: a choice per layer, made by the target.

A Stage that starts with a convolution by constant weights becomes the law's Computations
(`compute/winograd.py`); the map behind the convolution moves behind the transform of the results.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from tilewright.base import events
from tilewright.compute.laws import inline
from tilewright.compute.merge import merge_dims
from tilewright.compute.nodes import Computation
from tilewright.compute.winograd import winograd
from tilewright.expr.nodes import Buffer
from tilewright.graph.stages import HostCall, Stage


def transform_convolutions(
    steps: Sequence[Stage | HostCall],
    constants: Collection[Buffer],
    pays: Callable[[Sequence[Computation]], bool],
) -> list[Stage | HostCall]:
    """The steps, convolutions in Winograd's form where `pays` says so of the Computations."""
    found: list[Stage | HostCall] = []
    for step in steps:
        group = _transformed(step, constants) if isinstance(step, Stage) else None
        if isinstance(step, Stage) and group is not None and pays(merge_dims(group)[0]):
            events.emit("winograd", stage=step.name)
            step = replace(step, computations=group)
        found.append(step)
    return found


def _transformed(stage: Stage, constants: Collection[Buffer]) -> tuple[Computation, ...] | None:
    """A convolution, alone or with a map behind it, by the law; None for any other Stage."""
    if not 1 <= len(stage.computations) <= 2:
        return None
    first, *rest = stage.computations
    parts = winograd(first)
    if parts is None or not set(parts[0].inputs) <= set(constants):
        return None
    *before, result = parts
    if rest:
        whole = inline(result, rest[0])
        if whole is None or not rest[0].is_map or first.outputs[0].tensor in whole.inputs:
            return None
        result = whole
    return (*before, result)
