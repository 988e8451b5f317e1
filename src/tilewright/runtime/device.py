"""Devices: memory, copies and kernels next to the processor that Python runs on.

    Device  allocates memory, loads programs, and makes queues
    Queue   takes copies and launches, which run in order, now or later
    Event   the end of one such command: wait for it, or ask how long the command took

This is the common part of CUDA (stream, event), OpenCL (in-order command queue, event) and the
simulated accelerators. A command may return before its work is done. Until its event is over, the
caller leaves the host memory of a copy alone. The model's executor (`device_steps.py`) follows two
rules: a step on the host waits for all copies before it, and a launch waits for nothing.

A device is found by name (`devices.py`), so that an artifact runs without the compiler.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dataclass import dataclass
from tilewright.runtime import buffer

Bytes = NDArray[np.uint8]
Memory = Any  # an allocation; only its device knows what it is
Program = Any  # loaded code; only its device knows what it is
HOST: Final = "host"


@dataclass(frozen=True, slots=True)
class MemoryRange:
    """Bytes `offset` to `offset + nbytes` of an allocation.

    is_fixed: whether they are written once only, before any launch reads them.
    """

    memory: Memory
    offset: int
    nbytes: int
    is_fixed: bool = False


@dataclass(frozen=True, slots=True)
class Duration:
    """How long a command took.

    cycles, clock: of the device, in cycles and Hz, where it counts them. simulated: the time is
    computed from the cycles of a simulated machine; otherwise it was measured.
    """

    seconds: float
    cycles: int | None = None
    clock: float | None = None
    simulated: bool = False


class DeviceEvent(Protocol):
    """The end of one command of a queue."""

    def wait(self) -> None:
        """Return when the command is over. Raises ExecutionError if it failed."""
        ...

    def duration(self) -> Duration:
        """How long the command took, of a queue that is timed and a command that is over."""
        ...


class Queue(Protocol):
    """Commands that run in the order of submission."""

    def write(self, target: MemoryRange, source: Bytes) -> DeviceEvent:
        """Copy bytes of the host to the device."""
        ...

    def read(self, target: Bytes, source: MemoryRange) -> DeviceEvent:
        """Copy bytes of the device to the host."""
        ...

    def launch(self, program: Program, arguments: Sequence[MemoryRange]) -> DeviceEvent:
        """Run a program on its operands and results, in the order of its parameters, and on its
        workspace, whose contents are undefined."""
        ...


class Device(Protocol):
    """One device; `name` is what artifacts call it. capacity: all bytes of its memory; None where
    that is the host's."""

    name: str
    capacity: int | None

    def allocate(self, nbytes: int) -> Memory:
        """Memory that is free again when nothing refers to it. Raises MemoryLimitError."""
        ...

    def load(self, code: bytes) -> Program:
        """A program from the bytes that the compiler made. Raises ArtifactError for others."""
        ...

    def queue(self, timed: bool = False) -> Queue:
        """A new queue; timed: its events know how long their commands took."""
        ...


@runtime_checkable
class MeasuredDevice(Device, Protocol):
    """A device that knows how much of its memory is free now, whoever uses the rest."""

    def free_bytes(self) -> int:
        """Bytes that can be allocated now."""
        ...


# Runs on flat bytes, one array per parameter; timed: says how long the machine takes.
Runnable = Callable[[Sequence[Bytes], bool], Duration | None]


@dataclass(frozen=True, slots=True)
class CompletedEvent:
    """The end of a command that was over when it returned."""

    took: Duration

    def wait(self) -> None:
        """It is over."""

    def duration(self) -> Duration:
        """How long it took."""
        return self.took


class HostQueue:
    """A queue whose commands are done when they return."""

    def __init__(self, timed: bool) -> None:
        self._timed = timed

    def write(self, target: MemoryRange, source: Bytes) -> DeviceEvent:
        """Copy at once."""
        return self._copied(_view(target), source)

    def read(self, target: Bytes, source: MemoryRange) -> DeviceEvent:
        """Copy at once."""
        return self._copied(target, _view(source))

    def launch(
        self, program: Runnable, arguments: Sequence[MemoryRange]
    ) -> DeviceEvent:
        """Run at once; the time is the machine's where that is known, else the host's."""
        start = time.perf_counter()
        took = program([_view(a) for a in arguments], self._timed)
        return CompletedEvent(took or Duration(time.perf_counter() - start))

    def _copied(self, target: Bytes, source: Bytes) -> DeviceEvent:
        start = time.perf_counter()
        np.copyto(target, source)
        return CompletedEvent(Duration(time.perf_counter() - start))


class HostDevice:
    """The host, or a machine that a program on the host simulates: its memory is the host's."""

    def __init__(self, name: str, load: Callable[[bytes], Runnable]) -> None:
        self.name: Final = name
        self.load: Final = load
        self.capacity: Final = None

    def allocate(self, nbytes: int) -> Memory:
        """Aligned bytes of the host."""
        return buffer.arena(nbytes)

    def queue(self, timed: bool = False) -> HostQueue:
        """A queue whose commands are done when they return."""
        return HostQueue(timed)


def _view(region: MemoryRange) -> Bytes:
    found: Bytes = region.memory[region.offset : region.offset + region.nbytes]
    return found
