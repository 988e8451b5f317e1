"""Weights of convolutions stored channels last, where a device is expected to be faster then.

A step of its product is some channels of one place of the window: w[m, c, u, v] is read along c.
The array is transposed at compile time; it has the same elements, and only index maps change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilewright.base import events
from tilewright.compute.nodes import CC, Computation
from tilewright.compute.transforms import relayout
from tilewright.expr.nodes import Buffer
from tilewright.plan.nodes import FusionGroup, Plan, Step
from tilewright.plan.questions import Cost

# The buffer that replaces one, and the order of its axes.
Layouts = dict[Buffer, tuple[Buffer, tuple[int, ...]]]


def weights_last(
    plan: Plan,
    device: str,
    cost: Cost,
    gain: float,
) -> Plan:
    """The plan with the weights of a device's convolutions stored channels last where that pays.

    cost: the device's estimate of Computations. gain: the speedup of all that read the weights, at
    least.

    Requires of the weights: they are a constant that only groups of Computations on the device
    read, each in a reduction over axis 1, and have axes after it.
    """
    layouts: Layouts = {}
    for b in plan.data:
        readers = _readers(plan, b, device)
        has_window = bool(b.shape[2:])
        if not readers or not has_window or not all(_sums(c, b) for c in readers):
            continue
        moved = {b: _channels_last(b)}
        if _pays(readers, moved, plan, cost, gain):
            layouts |= moved
            names = [c.name for c in readers]
            events.emit("weights-last", tensor=b.name, readers=names)
    if not layouts:
        return plan
    arrays = {}
    for b, (to, order) in layouts.items():
        arrays[to] = np.ascontiguousarray(plan.data[b].transpose(order))
    steps = [_reading(step, layouts) for step in plan.steps]
    devices = {**plan.devices, **dict.fromkeys(arrays, device)}
    made = replace(plan, steps=tuple(steps), devices=devices)
    return made.with_constants(arrays)


def _channels_last(b: Buffer) -> tuple[Buffer, tuple[int, ...]]:
    rank = len(b.shape)
    order = (0, *range(2, rank), 1)
    shape = tuple(b.shape[axis] for axis in order)
    name = f"{b.name}_channels_last"
    moved = Buffer(name, shape, b.dtype)
    return moved, order


def _reading(
    step: Step,
    layouts: Layouts,
) -> Step:
    """The step on tensors in these layouts."""
    if not isinstance(step, FusionGroup) or layouts.keys().isdisjoint(step.reads):
        return step
    made = tuple(relayout(c, layouts) for c in step.computations)
    return replace(step, computations=made)


def _readers(
    plan: Plan,
    b: Buffer,
    device: str,
) -> list[Computation]:
    """The Computations that read a constant of a device; none if something else does."""
    found: list[Computation] = []
    if plan.devices.get(b) != device:
        return found
    for step in plan.steps:
        if b not in step.reads:
            continue
        if not isinstance(step, FusionGroup) or step.kernel is not None:
            return []
        found += (c for c in step.computations if b in c.inputs)
    return found


def _sums(
    c: Computation,
    b: Buffer,
) -> bool:
    """Whether it is a reduction over axis 1 of a tensor."""
    summed = [d.var for d in c.dims if d.combine != CC]
    reads = [a for a in c.accesses if a.buffer is b]
    return all(any(a.index[1] is v for v in summed) for a in reads)


def _pays(
    readers: Sequence[Computation],
    layouts: Layouts,
    plan: Plan,
    cost: Cost,
    gain: float,
) -> bool:
    """Whether the readers are expected to be faster with other layouts, by `gain` at least."""
    saved = 0.0
    for c in readers:
        before = cost((c,), plan.data)
        after = cost((relayout(c, layouts),), plan.data)
        if before is None or after is None:
            return False
        saved += before - gain * after
    return saved > 0
