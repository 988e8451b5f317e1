"""A call on tensors that are on the model's device, and results that stay there.

A kernel finds a buffer of its device in the call's arena. Inputs and results of other libraries are
bound in its place: under the buffer's place and name, since other buffers have the place before
and after. So nothing is copied, except for what runs on the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from tilewright.base.errors import InputError, placed
from tilewright.runtime import inputs, outputs
from tilewright.runtime.call import CallFrame, CallPlan, run
from tilewright.runtime.device_steps import caller_end, flat
from tilewright.runtime.device_tensor import (
    DeviceTensor,
    SharingDevice,
    allocated,
    is_elsewhere,
    taken,
)
from tilewright.runtime.model import (
    DeviceCopyStep,
    LaunchStep,
    Step,
    Tensor,
    ValueSlot,
)


def is_on_device(plan: CallPlan, values: Iterable[Any], out: Any) -> bool:
    """Whether inputs or `out=` have tensors that the host cannot read, and a device of the model
    shares its memory."""
    if not plan.model.devices:
        return False
    return any(map(is_elsewhere, (*values, *outputs.listed_out(out)))) and bool(
        _sharing(plan)
    )


def call(
    plan: CallPlan, frame: CallFrame, values: Sequence[Any], out: Any
) -> list[Any]:
    """The results: in `out` where it has a tensor for one, else on the device if an input is.

    Raises InputError for tensors of other devices, and for those that kernels cannot use as they
    are.
    """
    model = plan.model
    device = _sharing(plan)[0]
    if model.aliases:
        raise InputError(
            "the model writes results into inputs, which have to be on the host"
        )
    given = [_input(v, t, device) for v, t in zip(values, model.inputs)]
    wanted, targets = _targets(out, model.outputs, device)
    stays = any(isinstance(v, DeviceTensor) for v in given)
    if stays:
        free = (
            n for n, t in enumerate(model.outputs) if wanted[n] is None and t.is_static
        )
        targets.update((n, allocated(model.outputs[n], device)) for n in free)
    _check_apart(given, targets, model.outputs)
    places: list[Any] = [
        outputs.writable(t, given) for t in _on_host(targets, model.outputs)
    ]
    memory = frame.devices[device.name]
    try:
        for (kind, n), key in _bindings(model.steps, device.name):
            tensor = given[n] if kind == "input" else targets.get(n)
            if not isinstance(tensor, DeviceTensor):
                continue
            memory.bound[key] = tensor.place
            memory.ends.add((kind, n))
            if kind == "output":
                places[n] = tensor
        found = run(plan, frame, given, places)
    finally:
        memory.bound.clear()
        memory.ends.clear()
    queue: Any = memory.queue(False)
    for n, target in targets.items():
        found[n] = _delivered(found[n], target, queue)
    queue.finish()
    torch = any(map(inputs.is_torch, values))
    for n, target in enumerate(wanted):
        if target is not None:
            outputs.count_change(target)
            found[n] = target
        elif torch:
            found[n] = outputs.to_torch(found[n])
    return found


def _sharing(plan: CallPlan) -> list[SharingDevice]:
    """The devices of a model that share their memory."""
    opened = (d.device for d in plan.devices.values())
    return [d for d in opened if isinstance(d, SharingDevice)]


def _input(value: Any, tensor: Tensor, device: SharingDevice) -> Any:
    if not is_elsewhere(value):
        return inputs.convert(value, tensor)
    with placed(f"input {tensor.name!r}"):
        return taken(value, tensor, device)


def _targets(
    out: Any, tensors: Sequence[Tensor], device: SharingDevice
) -> tuple[list[Any], dict[int, Any]]:
    """What the caller gave for each output, and its memory by the output's number."""
    given = outputs.in_order(out, tensors)
    found: dict[int, Any] = {}
    for n, (value, tensor) in enumerate(zip(given, tensors)):
        if value is None:
            continue
        if not is_elsewhere(value):
            found[n] = outputs.checked(value, tensor)
            continue
        with placed(f"out= for {tensor.name!r}"):
            outputs.check_target(value, tensor)
            found[n] = taken(value, tensor, device, written=True)
    return given, found


def _on_host(targets: dict[int, Any], tensors: Sequence[Tensor]) -> list[Any]:
    """The targets in memory of the host, for each output; None where there is none."""
    found = (targets.get(n) for n in range(len(tensors)))
    return [t if isinstance(t, np.ndarray) else None for t in found]


def _check_apart(
    given: Sequence[Any], targets: dict[int, Any], tensors: Sequence[Tensor]
) -> None:
    """Raise InputError if a result's memory is that of an input or of another result."""
    results = [(n, t) for n, t in targets.items() if isinstance(t, DeviceTensor)]
    others = [v for v in given if isinstance(v, DeviceTensor)]
    pairs = [(n, r, v) for n, r in results for v in others]
    pairs += [(n, r, s) for (n, r), (_, s) in combinations(results, 2)]
    for n, one, other in pairs:
        if _overlap(one, other):
            raise InputError(
                "it shares memory with another tensor of the call",
                where=f"out= for {tensors[n].name!r}",
                hint="give each output a separate tensor",
            )
    outputs.check_apart(_on_host(targets, tensors), tensors)


def _overlap(one: DeviceTensor, other: DeviceTensor) -> bool:
    (a, n), (b, m) = (
        (t.place.memory.address + t.place.offset, t.place.nbytes) for t in (one, other)
    )
    return bool(a < b + m and b < a + n)


def _delivered(value: Any, target: Any, queue: Any) -> Any:
    """A result in its target; one that the host made is copied to the device."""
    if value is target:
        return value
    if isinstance(target, DeviceTensor):
        if not target.place.nbytes:
            return target
        queue.write(target.place, flat(np.ascontiguousarray(value))).wait()
    else:
        np.copyto(target, value)
    return target


# -- which buffers are inputs and results

_End = tuple[str, int]  # "input" or "output", and its number
_Key = tuple[int, str]  # of a buffer in the arena: its place and name


def _bindings(steps: Sequence[Step], device: str) -> Iterator[tuple[_End, _Key]]:
    """For each copy of an input to a device, or of a result from it, the buffer there."""
    for n, step in enumerate(steps):
        if not isinstance(step, DeviceCopyStep) or step.device != device:
            continue
        end = caller_end(step)
        if end is None:
            continue
        if step.inward:
            there, slots = step.target, _slots(steps[n + 1 :], device)
        else:
            there, slots = step.source, _slots(steps[:n], device)[::-1]
        # The buffer's first reader, or last writer, may have another one at the same place:
        # results are last, and may be where an operand was.
        names = (s.tensor.name for s in slots if s.at == there.at and s.tensor.nbytes)
        name = next(names, None)
        if name is not None:
            yield end, (there.at, name)


def _slots(steps: Sequence[Step], device: str) -> list[ValueSlot]:
    """The places in a device's arena that launches use, in order."""
    launches = (s for s in steps if isinstance(s, LaunchStep) and s.device == device)
    return [a for s in launches for a in s.arguments if a.kind == "device"]
