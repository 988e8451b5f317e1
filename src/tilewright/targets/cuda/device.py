"""An NVIDIA GPU as a device of the runtime, by the driver's API; no part of the compiler is needed.

Everything runs in order on one stream of the primary context, which other libraries share: memory
is allocated from and returned to the stream's pool in that order. Launches of an untimed queue are
collected until something needs their results; a sequence that repeats with the same addresses is
recorded as a graph, and then runs as one command.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import field
from typing import Any, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import (
    ArtifactError,
    ExecutionError,
    InputError,
    MemoryLimitError,
)
from tilewright.runtime.device import Bytes, Duration, MemoryRange
from tilewright.targets.cuda.driver import Driver, bindings
from tilewright.targets.cuda.machine import STATIC, machine
from tilewright.targets.cuda.tensor_maps import encoded
from tilewright.targets.simt.code import (
    PTX,
    DeviceProgram,
    KernelLaunch,
    constant_symbol,
)

NAME: Final = "cuda"
CUDA: Final = 2  # in DLPack
LEGACY: Final = 1  # the default stream, in DLPack and in the driver
_GRAPHS: Final = 16  # sequences that are kept as graphs
_PREFIX: Final = "CU_DEVICE_ATTRIBUTE_"
_POOL: Final = "CU_MEMPOOL_ATTR_"
# Queried of the GPU: limits that code can exceed, and features that the driver must have.
_ATTRIBUTES: Final = {
    "major": "COMPUTE_CAPABILITY_MAJOR",
    "minor": "COMPUTE_CAPABILITY_MINOR",
    "threads": "MAX_THREADS_PER_BLOCK",
    "shared": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "pools": "MEMORY_POOLS_SUPPORTED",
    "integrated": "INTEGRATED",
}


@dataclass(eq=False)
class Allocation:
    """Memory of the GPU from `address` on.

    readers: streams of other libraries, as DLPack numbers them, that may use it. owner: what keeps
    memory of another library alive.
    """

    address: int
    nbytes: int
    readers: set[int] = field(default_factory=set)
    owner: object = None


@dataclass(eq=False, slots=True)
class LoadedKernels:
    """A program on the GPU: its kernels in the order of its launches.

    constants: of each buffer in constant memory, by its number, the address and bytes there.
    sources: from where each is to be filled, None where that changes. filled: those that have been.
    """

    code: DeviceProgram
    kernels: list[Any]
    constants: dict[int, tuple[int, int]]
    sources: dict[int, set[int | None]] = field(default_factory=dict)
    filled: set[int] = field(default_factory=set)

    def declare(self, places: Sequence[MemoryRange]) -> None:
        """A run is to come, whose buffers these are: before it is decided what is filled."""
        for n in self.constants:
            place = places[n]
            source = _address(place) if place.is_fixed else None
            self.sources.setdefault(n, set()).add(source)

    @property
    def to_fill(self) -> tuple[int, ...]:
        """The buffers in constant memory that a run has to fill: all but those that have been, and
        always from one place whose bytes stay."""
        stay = (n for n in self.filled if len(self.sources[n] - {None}) == 1)
        kept = {n for n in stay if None not in self.sources[n]}
        return tuple(n for n in self.constants if n not in kept)


@dataclass(eq=False, slots=True)
class PendingRun:
    """A program to run on buffers, which it keeps alive until it is submitted."""

    program: LoadedKernels
    addresses: tuple[int, ...]
    arguments: tuple[MemoryRange, ...]


# What a recorded graph runs: programs, the addresses of their buffers, and the buffers in constant
# memory that it fills.
_Sequence = tuple[tuple[LoadedKernels, tuple[int, ...], tuple[int, ...]], ...]


def _address(place: MemoryRange) -> int:
    return int(place.memory.address + place.offset)


class CudaDevice:
    """A GPU; `api` is NVIDIA's bindings, or an object with the same behavior.

    index: its number among those that the driver shows. Raises ArtifactError without such a GPU, or
    with a driver that does not support memory pools.
    """

    name: Final = NAME

    def __init__(self, api: Any, index: int = 0) -> None:
        self.driver: Final = Driver(api)
        self.dlpack: Final = (CUDA, index)
        self.driver("Init", 0)
        _check_there(int(self.driver("DeviceGetCount")), index)
        number = self.driver("DeviceGet", index)
        kinds = api.CUdevice_attribute
        self.has: Final = {
            key: int(
                self.driver(
                    "DeviceGetAttribute", getattr(kinds, _PREFIX + name), number
                )
            )
            for key, name in _ATTRIBUTES.items()
        }
        if not self.has["pools"]:
            raise ArtifactError(
                "the NVIDIA driver does not support memory pools",
                code="TW-DEVICE",
                hint="update the driver: memory pools need CUDA 11.2",
            )
        self.capacity: Final = int(self.driver("DeviceTotalMem", number))
        self._pool: Final = self.driver("DeviceGetDefaultMemPool", number)
        self._context = self.driver("DevicePrimaryCtxRetain", number)
        self.enter()
        self.stream: Final = self.driver("StreamCreate", 1)  # not ordered with stream 0
        self.stream_handle: Final = int(self.stream)
        # Held while commands are submitted that belong together, of all queues: a graph records
        # what comes to the stream, and an array in constant memory is filled for one run.
        self.submitting: Final = threading.RLock()
        self.status: Final = self.allocate(8)
        self.driver("MemsetD8Async", self.status.address, 0, 8, self.stream)

    @property
    def capability(self) -> int:
        """The compute capability as an integer: 90 for 9.0."""
        return 10 * self.has["major"] + self.has["minor"]

    def enter(self) -> None:
        """Make the context current in this thread."""
        self.driver("CtxSetCurrent", self._context)

    def free_bytes(self) -> int:
        """Bytes that can be allocated now: what nobody has, and what is free in our pool.

        All of a GPU that shares the host's memory: its driver does not count what the host can
        give back (CUDA for Tegra, "Estimating Total Allocatable Device Memory").
        """
        if self.has["integrated"]:
            return self.capacity
        self.enter()
        free, _ = self.driver("MemGetInfo")
        kinds = self.driver.api.CUmemPool_attribute
        reserved, used = (
            int(self.driver("MemPoolGetAttribute", self._pool, getattr(kinds, name)))
            for name in (f"{_POOL}RESERVED_MEM_CURRENT", f"{_POOL}USED_MEM_CURRENT")
        )
        return int(free) + reserved - used

    def allocate(self, nbytes: int) -> Allocation:
        """Memory that is freed, in stream order, when it is no longer referenced."""
        self.enter()
        try:
            address = int(self.driver("MemAllocAsync", max(nbytes, 1), self.stream))
        except MemoryLimitError as error:
            raise error.at(f"{nbytes:,} bytes") from error.__cause__
        made = Allocation(address, nbytes)
        weakref.finalize(made, _free, self, address, made.readers).atexit = False
        return made

    def adopt(self, address: int, nbytes: int, owner: object) -> Allocation:
        """Memory of another library, which `owner` keeps alive."""
        return Allocation(address, nbytes, owner=owner)

    def lend(self, memory: Allocation, stream: int | None) -> int:
        """The address of memory for another library's stream: None and 1: the default one, 2: that
        of its thread, -1: one that it does not tell.

        Raises InputError for anything else that is no stream.
        """
        number = LEGACY if stream is None else stream
        if type(number) is not int or number < -1 or number == 0:
            raise InputError(
                f"stream={stream!r} is not a CUDA stream",
                hint="give None or 1 for the default stream, 2 for that of the thread, or a handle",
            )
        if number != self.stream_handle:
            memory.readers.add(number)
        return memory.address

    def load(self, code: bytes) -> LoadedKernels:
        """Load a program. Raises ArtifactError for malformed bytes, and for code that this GPU
        cannot run."""
        program = DeviceProgram.from_bytes(code, PTX)
        self._check(program)
        self.enter()
        image = program.binary or program.text.encode() + b"\0"
        module = self.driver("ModuleLoadData", image)
        kernels = [self._kernel(module, call) for call in program.launches]
        constants = {n: self._constant(module, n) for n in program.constants}
        return LoadedKernels(program, kernels, constants)

    def _check(self, program: DeviceProgram) -> None:
        made = machine(program.arch)
        runs = (
            self.capability == made.capability
            if made.is_specific or program.binary
            else self.capability >= made.capability
        )
        if not runs:
            raise ArtifactError(
                f"the code is for {made.name}, but this GPU is sm_{self.capability}",
                code="TW-DEVICE",
                hint=f"compile with mcpu='sm_{self.capability}', or without an 'a'",
            )
        for call in program.launches:
            x, y, z = call.threads
            wanted = {"threads": x * y * z, "shared": call.shared}
            for what, count in wanted.items():
                if count > self.has[what]:
                    unit = "threads" if what == "threads" else "bytes of shared memory"
                    raise ArtifactError(
                        f"a block takes {count:,} {unit}, but this GPU has {self.has[what]:,}",
                        code="TW-DEVICE",
                        where=f"kernel {call.name}",
                        hint="compile for this GPU: mcpu is its architecture",
                    )

    def _kernel(self, module: Any, call: KernelLaunch) -> Any:
        kernel = self.driver("ModuleGetFunction", module, call.name.encode())
        if call.dynamic > STATIC:
            kinds = self.driver.api.CUfunction_attribute
            most = kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self.driver("FuncSetAttribute", kernel, most, call.dynamic)
        return kernel

    def _constant(self, module: Any, number: int) -> tuple[int, int]:
        symbol = constant_symbol(number).encode()
        address, nbytes = self.driver("ModuleGetGlobal", module, symbol)
        return int(address), int(nbytes)

    def queue(self, timed: bool = False) -> CudaQueue:
        """A queue on the stream."""
        return CudaQueue(self, timed)


def _check_there(count: int, index: int) -> None:
    """Raise ArtifactError if there is no GPU of this number."""
    if count < 1:
        raise ArtifactError("there is no NVIDIA GPU", code="TW-DEVICE")
    if not 0 <= index < count:
        known = "device 0" if count == 1 else f"devices 0 to {count - 1}"
        raise ArtifactError(
            f"there is no NVIDIA GPU of the number {index}",
            code="TW-DEVICE",
            hint=f"the driver shows {known}",
        )


def _free(device: CudaDevice, address: int, readers: set[int]) -> None:
    """Free memory after what other libraries' streams do with it.

    The default stream does so in its order; any other one may no longer exist.
    """
    device.enter()
    if readers - {LEGACY}:
        device.driver("CtxSynchronize")
    stream = LEGACY if readers == {LEGACY} else device.stream
    device.driver("MemFreeAsync", address, stream)


def _destroy(device: CudaDevice, event: Any) -> None:
    device.enter()
    device.driver("EventDestroy", event)


class CudaEvent:
    """The end of one command. begin, end: the driver's events; the first if it is timed."""

    def __init__(
        self, queue: CudaQueue, begin: Any, end: Any, status: Bytes | None = None
    ) -> None:
        self._queue: Final = queue
        self._begin: Final = begin
        self._end: Final = end
        self._status: Final = status
        for event in (begin, end):
            if event is not None:
                last = weakref.finalize(self, _destroy, queue.device, event)
                last.atexit = False

    def wait(self) -> None:
        """Raises ExecutionError if a thread read at an index that is out of range."""
        self._queue.flush()
        driver = self._queue.device.driver
        if self._end is None or self._status is not None:
            driver("StreamSynchronize", self._queue.device.stream)
        else:
            driver("EventSynchronize", self._end)
        if self._status is not None and self._status.any():
            self._queue.clear()
            raise ExecutionError(
                "an index in the data is out of range", code="TW-INDEX"
            )

    def duration(self) -> Duration:
        """The time between the driver's events, which have a resolution of half a microsecond."""
        elapsed = self._queue.device.driver
        return Duration(
            float(elapsed("EventElapsedTime", self._begin, self._end)) / 1e3
        )


class CudaQueue:
    """Copies and launches in order."""

    def __init__(self, device: CudaDevice, timed: bool) -> None:
        self.device: Final = device
        self.timed: Final = timed
        self._pending: list[PendingRun] = []
        self._graphs: OrderedDict[_Sequence, Any] = OrderedDict()

    def write(self, target: MemoryRange, source: Bytes) -> CudaEvent:
        """Copy to the GPU."""
        address = target.memory.address + target.offset
        with self.device.submitting:
            begin = self._begin()
            self._driver(
                "MemcpyHtoDAsync",
                address,
                source.ctypes.data,
                target.nbytes,
                self._stream,
            )
            return CudaEvent(self, begin, self._mark())

    def read(self, target: Bytes, source: MemoryRange) -> CudaEvent:
        """Copy to the host, and what went wrong until then."""
        address = source.memory.address + source.offset
        with self.device.submitting:
            begin = self._begin()
            self._driver(
                "MemcpyDtoHAsync",
                target.ctypes.data,
                address,
                source.nbytes,
                self._stream,
            )
            end = self._mark() if self.timed else None
            return CudaEvent(self, begin, end, self._status())

    def finish(self) -> None:
        """Wait for all commands. Raises ExecutionError as `CudaEvent.wait`."""
        with self.device.submitting:
            self.flush()
            status = self._status()
        CudaEvent(self, None, None, status).wait()

    def _status(self) -> Bytes:
        """What went wrong, once the stream has arrived here."""
        status = np.zeros(8, np.uint8)
        self._driver(
            "MemcpyDtoHAsync",
            status.ctypes.data,
            self.device.status.address,
            8,
            self._stream,
        )
        return status

    def launch(
        self, program: LoadedKernels, arguments: Sequence[MemoryRange]
    ) -> CudaEvent:
        """Run a program; immediately if the queue is timed."""
        addresses = tuple(map(_address, arguments))
        found = PendingRun(program, addresses, tuple(arguments))
        if not self.timed:
            self._pending.append(found)
            return CudaEvent(self, None, None)
        with self.device.submitting:
            begin = self._begin()
            program.declare(arguments)
            self._run((found,))
            program.filled.update(program.constants)
            return CudaEvent(self, begin, self._mark())

    def clear(self) -> None:
        """Forget what went wrong."""
        with self.device.submitting:
            self._driver(
                "MemsetD8Async", self.device.status.address, 0, 8, self._stream
            )

    # -- collected launches

    def flush(self) -> None:
        """Submit the collected launches to the GPU: as a graph if they repeat."""
        self.device.enter()
        found, self._pending = tuple(self._pending), []
        if not found:
            return
        with self.device.submitting:
            self._submit(found)

    def _submit(self, found: tuple[PendingRun, ...]) -> None:
        for p in found:
            p.program.declare(p.arguments)
        key = tuple((p.program, p.addresses, p.program.to_fill) for p in found)
        known = key in self._graphs
        graph = self._graphs.pop(key, None)
        if known and graph is None:
            graph = self._recorded(found)
        if graph is None:
            self._run(found)
            for p in found:
                p.program.filled.update(p.program.constants)
        else:
            self._driver("GraphLaunch", graph, self._stream)
        self._graphs[key] = graph
        if len(self._graphs) > _GRAPHS:
            _, old = self._graphs.popitem(last=False)
            if old is not None:
                self._driver("GraphExecDestroy", old)

    def _recorded(self, found: tuple[PendingRun, ...]) -> Any:
        modes = self.device.driver.api.CUstreamCaptureMode
        mode = modes.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._driver("StreamBeginCapture", self._stream, mode)
        try:
            self._run(found)
        finally:
            graph = self._driver("StreamEndCapture", self._stream)
        made = self._driver("GraphInstantiate", graph, 0)
        self._driver("GraphDestroy", graph)
        return made

    def _run(self, found: Sequence[PendingRun]) -> None:
        for pending in found:
            program = pending.program
            for n in program.to_fill:
                address, nbytes = program.constants[n]
                source = pending.addresses[n]
                self._driver("MemcpyDtoDAsync", address, source, nbytes, self._stream)
            calls = zip(program.code.launches, program.kernels, strict=True)
            for call, kernel in calls:
                self._start(call, kernel, pending.addresses)

    def _start(self, call: KernelLaunch, kernel: Any, addresses: Sequence[int]) -> None:
        if 0 in call.grid:
            return
        given = [addresses[n] for n in call.arguments]
        maps = [encoded(self._driver, m, given[m.argument]) for m in call.maps]
        values = (*given, *maps, self.device.status.address)
        pointer = ctypes.c_void_p
        kinds = (*[pointer] * len(given), *[None] * len(maps), pointer)
        self._driver(
            "LaunchKernel",
            kernel,
            *call.grid,
            *call.threads,
            call.dynamic,
            self._stream,
            (values, kinds),
            0,
        )

    # -- the driver

    @property
    def _driver(self) -> Driver:
        return self.device.driver

    @property
    def _stream(self) -> Any:
        return self.device.stream

    def _begin(self) -> Any:
        self.flush()
        return self._mark() if self.timed else None

    def _mark(self) -> Any:
        """An event at this place; in an untimed queue it records no time."""
        event = self._driver("EventCreate", 0 if self.timed else 2)
        self._driver("EventRecord", event, self._stream)
        return event


def make(index: int = 0) -> CudaDevice:
    """The device, for `runtime.devices`. Raises ArtifactError (TW-DEVICE) if there is none."""
    return CudaDevice(bindings(), index)
