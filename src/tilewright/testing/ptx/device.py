"""The device `cuda` without a GPU: models run by the interpreter of PTX, slowly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.base.dtypes import dtype_of
from tilewright.base.errors import ExecutionError
from tilewright.runtime.device import Bytes, HostDevice, Runnable
from tilewright.targets.simt.code import PTX, DeviceProgram, constant_symbol
from tilewright.testing.ptx.boxes import EncodedMap
from tilewright.testing.ptx.machine import run
from tilewright.testing.ptx.memory import CallerMemory
from tilewright.testing.ptx.text import kernels
from tilewright.testing.ptx.traffic import WarpTraffic

# What unwritten memory holds: not a number in every float format.
UNWRITTEN = 0xFF


def load(code: bytes, traffic: WarpTraffic | None = None) -> Runnable:
    """A program that runs on flat bytes. traffic: counts its memory requests."""
    program = DeviceProgram.from_bytes(code, PTX)
    found = kernels(program.text)

    def launch(arrays: Sequence[Bytes], timed: bool) -> None:
        work = [np.full(n, UNWRITTEN, np.uint8) for n in program.workspace]
        held = [*arrays, *work, np.zeros(8, np.uint8)]
        memory = CallerMemory(held)
        for call in program.launches:
            numbers = (*call.arguments, len(held) - 1)
            addresses: list[int | EncodedMap] = [memory.addresses[n] for n in numbers]
            addresses[-1:-1] = [
                EncodedMap(
                    memory.addresses[call.arguments[m.argument]],
                    dtype_of(m.dtype).itemsize,
                    m.extents,
                    m.sides,
                )
                for m in call.maps
            ]
            kernel = found[call.name]
            run(
                kernel,
                call.grid,
                call.threads,
                memory,
                addresses,
                call.dynamic,
                traffic,
                {constant_symbol(n): held[n] for n in call.constants},
            )
        for n, array in enumerate(arrays):
            np.copyto(array, memory.array(n, array))
        if memory.array(len(held) - 1, held[-1]).any():
            raise ExecutionError(
                "an index in the data is out of range", code="TW-INDEX"
            )

    return launch


def make() -> HostDevice:
    """The device, for `runtime.devices.register`."""
    return HostDevice("cuda", load)
