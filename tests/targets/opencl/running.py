"""Programs on the device that tests run on: PoCL, so that no GPU is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from tilewright.base.errors import ArtifactError
from tilewright.expr.nodes import Buffer, Var
from tilewright.loops.launch import AXIS, Launch, LaunchProgram
from tilewright.loops.nodes import Stmt
from tilewright.runtime.device import MemoryRange
from tilewright.targets.opencl.device import OpenCLDevice
from tilewright.targets.opencl.emit import emit
from tilewright.targets.opencl.platforms import listed, shown

X: Var = AXIS["threadIdx.x"]


@cache
def pocl() -> OpenCLDevice:
    """The device; the test is skipped where PoCL is not installed."""
    try:
        found = [d for d in listed() if "Portable Computing" in shown(d)]
    except ArtifactError as error:
        pytest.skip(str(error))
    if not found:
        pytest.skip("PoCL is not installed")
    return OpenCLDevice(found[0])


def launched(
    body: Stmt,
    params: Sequence[Buffer],
    threads: int = 1,
    blocks: int = 1,
    shared: Sequence[Buffer] = (),
) -> LaunchProgram:
    """A program of one launch."""
    launch = Launch(
        name="case",
        params=tuple(params),
        grid=(blocks, 1, 1),
        threads=(threads, 1, 1),
        shared=tuple(shared),
        body=body,
    )
    return LaunchProgram("case", tuple(params), (), (), (launch,))


def run(
    program: LaunchProgram, arrays: Mapping[Buffer, Any], exact: bool = True
) -> dict[Buffer, Any]:
    """As `program_on`, on PoCL."""
    return program_on(pocl(), program, arrays, exact)


def program_on(
    device: OpenCLDevice,
    program: LaunchProgram,
    arrays: Mapping[Buffer, Any],
    exact: bool = True,
) -> dict[Buffer, Any]:
    """What is in the buffers of a program after it ran on these; bytes of the others are 0xa5."""
    loaded = device.load(emit(program, exact).to_bytes())
    queue = device.queue()
    regions = []
    given = {}
    for b in (*program.params, *program.workspace):
        size = b.size * b.dtype.itemsize
        data = np.full(size, 0xA5, np.uint8)
        if b in arrays:
            data[:] = np.ascontiguousarray(arrays[b]).reshape(-1).view(np.uint8)
        # Not at the start of an allocation, as in an arena.
        region = MemoryRange(device.allocate(size + 64), 64, size)
        queue.write(region, data).wait()
        regions.append(region)
        given[b] = data
    queue.launch(loaded, regions)
    for b, region in zip(program.params, regions):
        queue.read(given[b], region).wait()
    return {b: x.view(b.dtype.numpy).reshape(b.shape) for b, x in given.items()}
