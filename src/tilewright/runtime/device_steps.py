"""The steps of a model that are for devices, prepared to run.

A copy keeps host memory in use until its event is over: `Transfers` holds such events, and the
executor waits for them before the host touches memory again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import MemoryLimitError, placed
from tilewright.runtime import devices
from tilewright.runtime.device import (
    Bytes,
    CompletedEvent,
    Device,
    DeviceEvent,
    Duration,
    MeasuredDevice,
    MemoryRange,
    Program,
    Queue,
)
from tilewright.runtime.model import (
    CompiledModel,
    DeviceCopyStep,
    LaunchStep,
    ValueSlot,
)

if TYPE_CHECKING:
    from tilewright.runtime.call import CallValues


@dataclass(eq=False, slots=True)
class OpenDevice:
    """A device with what a model needs there: programs by number, constants by place and size."""

    device: Device
    arena_bytes: int
    programs: dict[int, Program] = field(default_factory=dict)
    constants: dict[tuple[int, int], MemoryRange] = field(default_factory=dict)

    def memory(self) -> DeviceMemory:
        """An arena for one running call.

        Raises MemoryLimitError if the device does not have that much memory.
        """
        with placed(f"memory between the kernels on device {self.device.name}"):
            arena = self.device.allocate(self.arena_bytes)
        return DeviceMemory(self, arena)


def open_devices(
    model: CompiledModel, constants: Bytes, number: int = 0
) -> dict[str, OpenDevice]:
    """The devices of a model, with its programs loaded and its constants copied there. number: of
    several devices of one name.

    Raises ArtifactError for a device that is not there, and for code that is not the device's;
    MemoryLimitError, before anything is allocated, for a device that has too little memory.
    """
    found = {
        name: OpenDevice(devices.numbered(name, number), size)
        for name, size in model.devices.items()
    }
    for opened in found.values():
        _check_fits(opened, model)
    for step in model.launches:
        opened = found[step.device]
        with placed(f"kernel {step.name!r}"):
            if step.program not in opened.programs:
                code = model.programs[step.program]
                opened.programs[step.program] = opened.device.load(code)
        fixed = (s for s in step.arguments if s.kind == "constant")
        _upload(opened, fixed, constants)
    return found


def _check_fits(opened: OpenDevice, model: CompiledModel) -> None:
    """Raise MemoryLimitError (TW-DEVICE-MEMORY) for a model whose constants, and what one call has
    between the kernels, are more than all memory of the device, or, where it tells, than is free.
    """
    device, between = opened.device, opened.arena_bytes
    launches = [step for step in model.launches if step.device == device.name]
    sizes = {
        s.at: s.tensor.nbytes
        for step in launches
        for s in step.arguments
        if s.kind == "constant"
    }
    fixed = sum(sizes.values())
    needed = fixed + between
    if device.capacity is None:
        return
    free = device.free_bytes() if isinstance(device, MeasuredDevice) else None
    if needed > device.capacity:
        has = f"has {device.capacity:,}"
        hint = "take a smaller batch, or a device with more memory"
    elif free is not None and needed > free:
        has = f"has {free:,} of {device.capacity:,} left"
        hint = "end what else uses the device, or take a smaller batch"
    else:
        return
    raise MemoryLimitError(
        f"the model needs {needed:,} bytes on device {device.name}, which {has}: {fixed:,} for "
        f"constants, {between:,} between the kernels",
        code="TW-DEVICE-MEMORY",
        hint=hint,
    )


def _upload(opened: OpenDevice, slots: Iterable[ValueSlot], constants: Bytes) -> None:
    """Copy those constants to the device that are not there yet."""
    queue = opened.device.queue()
    for slot in slots:
        key = slot.at, slot.tensor.nbytes
        if key in opened.constants:
            continue
        with placed(f"constant {slot.tensor.name} on device {opened.device.name}"):
            memory = opened.device.allocate(key[1])
            place = MemoryRange(memory, 0, key[1], is_fixed=True)
        queue.write(place, constants[slot.at : slot.at + key[1]]).wait()
        opened.constants[key] = place


class DeviceMemory:
    """What one running call has on a device: an arena, and a queue."""

    def __init__(self, opened: OpenDevice, arena: Any) -> None:
        self.opened: Final = opened
        self.arena: Final = arena
        self._queues: dict[bool, Queue] = {}
        # Tensors of the caller in place of buffers, by the place and name of the buffer, and
        # which inputs and outputs they are.
        self.bound: Final[dict[tuple[int, str], MemoryRange]] = {}
        self.ends: Final[set[tuple[str, int]]] = set()

    def queue(self, timed: bool) -> Queue:
        """The queue of the call; a timed one while it is profiled."""
        if timed not in self._queues:
            self._queues[timed] = self.opened.device.queue(timed)
        return self._queues[timed]

    def region(self, slot: ValueSlot) -> MemoryRange:
        """The bytes of a slot on the device."""
        size = slot.tensor.nbytes
        if slot.kind == "constant":
            return self.opened.constants[slot.at, size]
        found = self.bound.get((slot.at, slot.tensor.name)) if self.bound else None
        return found or MemoryRange(self.arena, slot.at, size)


@dataclass(eq=False, slots=True)
class Transfers:
    """Copies under way: host memory that a device still reads, and that it still writes."""

    reading: list[DeviceEvent] = field(default_factory=list)
    writing: list[DeviceEvent] = field(default_factory=list)

    def settle(self) -> None:
        """Wait until the host may read and write all of its memory."""
        self.arrived()
        _wait(self.reading)

    def arrived(self) -> None:
        """Wait until everything that devices write into host memory has arrived."""
        _wait(self.writing)


def _wait(events: list[DeviceEvent]) -> None:
    while events:
        events.pop(0).wait()


def caller_end(step: DeviceCopyStep) -> tuple[str, int] | None:
    """The input that is copied to a device, or the output that is copied from it, by its number;
    None for any other tensor, such as an output that the host made and the device reads."""
    end, kind = (step.source, "input") if step.inward else (step.target, "output")
    return (kind, end.at) if end.kind == kind else None


class CopyRun:
    """A copy to or from a device, unless the caller's tensor is there."""

    def __init__(self, step: DeviceCopyStep) -> None:
        self.step = step

    def run(self, values: CallValues) -> DeviceEvent:
        """Begin the copy."""
        step, transfers = self.step, values.transfers
        memory = values.frame.devices[step.device]
        queue = memory.queue(values.timed)
        if caller_end(step) in memory.ends:
            return CompletedEvent(Duration(0.0))  # it is there
        if step.inward:
            transfers.arrived()
            source = flat(values.array(step.source))
            event = queue.write(memory.region(step.target), source)
            transfers.reading.append(event)
        else:
            target = flat(values.array(step.target))
            event = queue.read(target, memory.region(step.source))
            transfers.writing.append(event)
        return event


class LaunchRun:
    """A launch of a device's program."""

    def __init__(self, step: LaunchStep) -> None:
        self.step = step

    def run(self, values: CallValues) -> DeviceEvent:
        """Begin the launch. Raises ExecutionError naming the kernel if it fails at once."""
        step = self.step
        memory = values.frame.devices[step.device]
        regions: Sequence[MemoryRange] = [memory.region(s) for s in step.arguments]
        with placed(f"kernel {step.name!r}"):
            program = memory.opened.programs[step.program]
            return memory.queue(values.timed).launch(program, regions)


def flat(array: np.ndarray[Any, Any]) -> Bytes:
    """The bytes of an array in C order, as stored in memory."""
    found: Bytes = array.reshape(-1).view(np.uint8)
    return found
