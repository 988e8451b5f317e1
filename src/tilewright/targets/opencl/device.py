"""OpenCL devices of the runtime, through pyopencl; needs no part of the compiler.

A program is built when it is loaded; its kernels take each operand as memory and bytes into it, so
that no alignment of sub-buffers is required. A queue runs its commands in order.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ArtifactError, ExecutionError, MemoryLimitError
from tilewright.base.store import default_store
from tilewright.runtime.device import (
    Bytes,
    CompletedEvent,
    DeviceEvent,
    Duration,
    MemoryRange,
)
from tilewright.targets.opencl.failures import failure, first_line
from tilewright.targets.opencl.newer_processors import TOO_NEW, renamed
from tilewright.targets.opencl.platforms import chosen, imported
from tilewright.targets.simt.code import (
    NO_SUBGROUPS,
    OPENCL_C,
    DeviceProgram,
    KernelLaunch,
)

NAME: Final = "opencl"
_STANDARD: Final = "-cl-std=CL1.2"
# Of programs with subgroups, by the beginning of the device's version.
_LATER: Final = {"OpenCL 2": "-cl-std=CL2.0", "OpenCL 3": "-cl-std=CL3.0"}
# Without it a division of floats may be wrong in the last two bits.
_DIVIDES: Final = "-cl-fp32-correctly-rounded-divide-sqrt"
_NEWER: Final = (
    "its compiler is older than this processor: install a newer driver (PoCL 5 on)"
)
_STATUS: Final = 4  # bytes in which kernels tell a wrong index


@dataclass(frozen=True, eq=False, slots=True)
class OpenCLProgram:
    """A built program."""

    code: DeviceProgram
    built: Any


class OpenCLDevice:
    """One device with its context. most: the largest buffer in bytes, if below the device's
    limit. constant: the same, of one in constant memory."""

    def __init__(self, device: Any, most: int | None = None) -> None:
        self.name: Final = NAME
        self.cl: Final = imported()
        self.device: Final = device
        self.most: Final = device.max_mem_alloc_size if most is None else most
        self.capacity: Final = int(device.global_mem_size)
        self.constant: int = device.max_constant_buffer_size
        with self.explained("making a context"):
            self.context: Final = self.cl.Context([device])

    def allocate(self, nbytes: int) -> Any:
        """A buffer of the device. Raises MemoryLimitError."""
        self._check_size(nbytes)
        with self.explained(f"allocating {nbytes:,} bytes"):
            return self.cl.Buffer(
                self.context, self.cl.mem_flags.READ_WRITE, max(1, nbytes)
            )

    def _check_size(self, nbytes: int) -> None:
        """Raise MemoryLimitError for more bytes than the device allocates in one piece."""
        if nbytes > self.most:
            raise MemoryLimitError(
                f"{nbytes:,} bytes are needed in one piece, and {self.device.name.strip()} "
                f"gives {self.most:,} at most",
                code="TW-DEVICE-MEMORY",
                hint="take a smaller batch, or a device with more memory",
            )

    def load(self, code: bytes) -> OpenCLProgram:
        """A program from the compiler's output.

        Raises ArtifactError for invalid bytes, for a program that the device's compiler rejects
        (TW-DEVICE-BUILD), and for one that exceeds the device's resources (TW-DEVICE).
        """
        found = DeviceProgram.from_bytes(code, OPENCL_C)
        for kernel in found.launches:
            self._check(kernel)
        self._check_extensions(found)
        return OpenCLProgram(found, self._built(found))

    def _check(self, kernel: KernelLaunch) -> None:
        """Raise ArtifactError for a kernel that the device cannot run."""
        threads, local = int(np.prod(kernel.threads)), self.device.local_mem_size
        limits = (
            (threads, self.device.max_work_group_size, "threads of a block"),
            (kernel.shared, local, "bytes of shared memory"),
            (len(kernel.constants), self.device.max_constant_args, "constant tensors"),
        )
        for wanted, most, what in limits:
            if wanted > most:
                raise ArtifactError(
                    f"it takes {wanted:,} {what}, and {self.device.name.strip()} has {most:,}",
                    code="TW-DEVICE",
                    where=f"kernel {kernel.name}",
                    hint="compile the model for this device's machine description",
                )

    def _check_extensions(self, code: DeviceProgram) -> None:
        """Raise ArtifactError for extensions of OpenCL C that the device lacks."""
        has = set(self.device.extensions.split()) if code.extensions else set()
        for name in code.extensions:
            if name not in has:
                raise ArtifactError(
                    f"it needs {name}, which {self.device.name.strip()} has not",
                    code="TW-DEVICE",
                    where=f"kernel {', '.join(k.name for k in code.launches)}",
                    hint="compile the model for a machine description without subgroups",
                )

    def _built(self, code: DeviceProgram) -> Any:
        later = _LATER.get(self.device.version[:8], _STANDARD)
        options = [later if code.extensions else _STANDARD]
        rounds = self.cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
        if self.device.single_fp_config & rounds:
            options.append(_DIVIDES)
        kept, cl = default_store(), self.cl
        key = self._key(code, options)
        binary = None if kept is None else kept.get(key)
        try:
            if binary is not None:
                return self._quietly(
                    cl.Program(self.context, [self.device], [binary]), options
                )
            built = self._compiled(code.text, options)
        except cl.Error as error:
            names = ", ".join(k.name for k in code.launches)
            raise ArtifactError(
                f"{self.device.name.strip()} cannot build it: {first_line(error)}",
                code="TW-DEVICE-BUILD",
                where=f"kernel {names}",
                hint=_NEWER if TOO_NEW in str(error) else None,
            ) from error
        if kept is not None:
            kept.put(key, built.get_info(cl.program_info.BINARIES)[0])
        return built

    def _compiled(self, source: str, options: list[str]) -> Any:
        """Built from source; once more if its compiler only has to be told another processor."""
        try:
            return self._quietly(self.cl.Program(self.context, source), options)
        except self.cl.Error as error:
            if TOO_NEW not in str(error) or not renamed(self.device):
                raise
        return self._quietly(self.cl.Program(self.context, source), options)

    def _quietly(self, program: Any, options: list[str]) -> Any:
        """Built, without the compiler's warnings."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self.cl.CompilerWarning)
            return program.build(options, cache_dir=False)

    def _key(self, code: DeviceProgram, options: Sequence[str]) -> str:
        """What a built program depends on, for the cache."""
        d = self.device
        parts = (d.platform.version, d.name, d.version, d.driver_version, *options)
        text = "\n".join((*parts, code.text))
        return f"opencl-{hashlib.sha256(text.encode()).hexdigest()}"

    def queue(self, timed: bool = False) -> OpenCLQueue:
        """A queue in order; timed: its events know how long their commands took."""
        return OpenCLQueue(self, timed)

    @contextmanager
    def explained(self, doing: str) -> Iterator[None]:
        """Convert errors of OpenCL to this package's: MemoryLimitError, ExecutionError."""
        try:
            yield
        except self.cl.Error as error:
            raise failure(error, doing, self.device.name.strip()) from error


class OpenCLQueue:
    """An in-order command queue, with what its launches need for themselves."""

    def __init__(self, device: OpenCLDevice, timed: bool) -> None:
        cl = device.cl
        self.device: Final = device
        properties = cl.command_queue_properties.PROFILING_ENABLE if timed else 0
        with device.explained("making a queue"):
            self._queue = cl.CommandQueue(device.context, properties=properties)
        self._kernels: dict[OpenCLProgram, list[Any]] = {}
        self._status: Any = None
        self._unread = False
        self._messages: list[str] = []
        self._firsts: dict[OpenCLProgram, int] = {}
        self._constants: dict[tuple[OpenCLProgram, int], Any] = {}

    def write(self, target: MemoryRange, source: Bytes) -> DeviceEvent:
        """Copy bytes of the host to the device."""
        if not target.nbytes:
            return CompletedEvent(Duration(0.0))
        with self.device.explained("copying to the device"):
            event = self.device.cl.enqueue_copy(
                self._queue,
                target.memory,
                np.ascontiguousarray(source),
                dst_offset=target.offset,
                is_blocking=False,
            )
        return OpenCLEvent(self.device, (event,), source)

    def read(self, target: Bytes, source: MemoryRange) -> DeviceEvent:
        """Copy bytes of the device to the host; what was wrong before is raised by waiting."""
        if not source.nbytes:
            return CompletedEvent(Duration(0.0))
        with self.device.explained("copying from the device"):
            event = self.device.cl.enqueue_copy(
                self._queue,
                target,
                source.memory,
                src_offset=source.offset,
                is_blocking=False,
            )
        return OpenCLEvent(self.device, (event,), target, self._check())

    def launch(
        self, program: OpenCLProgram, arguments: Sequence[MemoryRange]
    ) -> DeviceEvent:
        """Run the launches of a program in order."""
        events = []
        for code, kernel in zip(program.code.launches, self._kernels_of(program)):
            values: list[Any] = []
            for n in code.arguments:
                given = arguments[n]
                if n in code.constants:
                    given = self._constant(program, n, given)
                values += [given.memory, np.uint64(given.offset)]
            if code.checked:
                values += [self._status_memory(), np.int32(self._first_of(program))]
            whole = tuple(g * t for g, t in zip(code.grid, code.threads))
            with self.device.explained(f"kernel {code.name}"):
                kernel.set_args(*values)
                events.append(
                    self.device.cl.enqueue_nd_range_kernel(
                        self._queue, kernel, whole, code.threads
                    )
                )
        return OpenCLEvent(self.device, tuple(events), arguments)

    def _constant(
        self, program: OpenCLProgram, number: int, given: MemoryRange
    ) -> MemoryRange:
        """An argument in constant memory: its allocation, if that is small enough, else a copy."""
        device = self.device
        if given.memory.size <= device.constant:
            return given
        key = program, number
        if key not in self._constants:
            self._constants[key] = device.allocate(given.nbytes)
        with device.explained("copying to constant memory"):
            device.cl.enqueue_copy(
                self._queue,
                self._constants[key],
                given.memory,
                byte_count=given.nbytes,
                src_offset=given.offset,
            )
        return MemoryRange(self._constants[key], 0, given.nbytes)

    def _kernels_of(self, program: OpenCLProgram) -> list[Any]:
        """The kernels of a program for this queue alone: they hold their arguments."""
        if program not in self._kernels:
            names = [k.name for k in program.code.launches]
            with self.device.explained(f"making kernel {', '.join(names)}"):
                self._kernels[program] = [
                    self.device.cl.Kernel(program.built, name) for name in names
                ]
        return self._kernels[program]

    def _first_of(self, program: OpenCLProgram) -> int:
        """The number before that of a program's first message, of all messages of this queue."""
        if program not in self._firsts:
            self._firsts[program] = len(self._messages)
            self._messages += program.code.checks
        return self._firsts[program]

    def _status_memory(self) -> Any:
        """Where kernels tell wrong indices; 0 as long as there was none."""
        if self._status is None:
            self._status = self.device.allocate(_STATUS)
            with self.device.explained("clearing memory"):
                self._clear()
        self._unread = True
        return self._status

    def _clear(self) -> None:
        zero = np.int32(0)
        self.device.cl.enqueue_fill_buffer(self._queue, self._status, zero, 0, _STATUS)

    def _check(self) -> Callable[[], None] | None:
        """Requests the kernels' messages since the last time; they are available after the
        event."""
        if not self._unread:
            return None
        self._unread = False
        told = np.zeros(1, np.int32)
        with self.device.explained("copying from the device"):
            event = self.device.cl.enqueue_copy(
                self._queue, told, self._status, is_blocking=False
            )
            self._clear()

        def require() -> None:
            event.wait()
            if told[0]:
                said = self._messages[told[0] - 1]
                code = "TW-DEVICE" if said == NO_SUBGROUPS else "TW-INDEX"
                raise ExecutionError(said, code=code)

        return require


@dataclass(frozen=True, slots=True)
class OpenCLEvent:
    """The end of a command of one or several parts.

    held: what has to live until then. check: raises what the kernels before told.
    """

    device: OpenCLDevice
    parts: tuple[Any, ...]
    held: object = None
    check: Callable[[], None] | None = None

    def wait(self) -> None:
        """Return when all is done. Raises ExecutionError where something failed."""
        with self.device.explained("waiting for the device"):
            for part in self.parts:
                part.wait()
            if self.check is not None:
                self.check()

    def duration(self) -> Duration:
        """By the clock of the device, the parts together."""
        times = (p.profile.end - p.profile.start for p in self.parts)
        return Duration(sum(times) * 1e-9)


def make() -> OpenCLDevice:
    """The device, for `runtime.devices`. Raises ArtifactError (TW-DEVICE) where there is none."""
    return OpenCLDevice(chosen())
