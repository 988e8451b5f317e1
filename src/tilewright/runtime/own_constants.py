"""One model of a range by itself: without the constants that only other codes of the range read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.runtime import abi
from tilewright.runtime.model import (
    CompiledModel,
    CopyStep,
    DeviceCopyStep,
    HostFallbackStep,
    LaunchStep,
    NativeStep,
    Step,
    ValueSlot,
)
from tilewright.runtime.packed import Block, Constants, PackedConstant


def with_own_constants(model: CompiledModel) -> CompiledModel:
    """The model with the constants that its steps name, if it shares its block with others."""
    if not model.shares_constants:
        return model
    spans: dict[int, int] = {}
    for slot in model.slots:
        if slot.kind == "constant":
            spans[slot.at] = max(slot.tensor.nbytes, spans.get(slot.at, 0))
    places: dict[int, int] = {}
    total = 0
    for at, size in sorted(spans.items()):
        places[at] = total
        total += -(-size // abi.ALIGNMENT) * abi.ALIGNMENT
    block = np.zeros(total, np.uint8)
    for at, size in spans.items():
        block[places[at] : places[at] + size] = model.constants[at : at + size]
    steps = tuple(_moved(step, places) for step in model.steps)
    held = Constants(block, *_packed(model, places))
    return replace(model, steps=steps, shares_constants=False).with_constants(held)


def _packed(
    model: CompiledModel, places: dict[int, int]
) -> tuple[tuple[PackedConstant, ...], tuple[Block, ...]]:
    """The packed constants at their places, and the weights that are not in the block."""
    weights: dict[int, Block] = {}
    found: list[PackedConstant] = []
    for p in model.packed:
        if p.at not in places:
            continue
        place = places.get(p.weight)
        if place is None:
            place = -1 - [*weights, p.weight].index(p.weight)
            weights[p.weight] = (
                model.weights[-1 - p.weight]
                if p.weight < 0
                else model.constants[p.weight : p.weight + p.weight_bytes]
            )
        found.append(replace(p, at=places[p.at], weight=place))
    return tuple(found), tuple(weights.values())


def _moved(step: Step, places: dict[int, int]) -> Step:
    def one(slot: ValueSlot) -> ValueSlot:
        return replace(slot, at=places[slot.at]) if slot.kind == "constant" else slot

    def optional(slot: ValueSlot | None) -> ValueSlot | None:
        return None if slot is None else one(slot)

    match step:
        case NativeStep():
            return replace(step, values=tuple(map(one, step.values)))
        case LaunchStep():
            return replace(step, arguments=tuple(map(one, step.arguments)))
        case CopyStep() | DeviceCopyStep():
            return replace(step, source=one(step.source), target=one(step.target))
        case HostFallbackStep():
            return replace(
                step,
                inputs=tuple(map(optional, step.inputs)),
                outputs=tuple(map(optional, step.outputs)),
            )
