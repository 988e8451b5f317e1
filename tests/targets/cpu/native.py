"""Runs a kernel's object code in this process."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.expr.nodes import Buffer
from tilewright.loops.nodes import Kernel
from tilewright.runtime.abi import (
    ALIGNMENT,
    CTX_PARALLEL,
    CTX_SLOTS,
    CTX_STATUS,
    CTX_THREADS,
)
from tilewright.runtime.loader import link
from tilewright.targets.cpu.compile import compile_kernel
from tilewright.targets.cpu.machine import CpuMachine, host

_REGION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int64] * 3)
_PARALLEL = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)


class Loaded:
    """Object code mapped into the process."""

    def __init__(self, *objects: bytes) -> None:
        self.image = link(objects)

    def function(self, name: str, arguments: int) -> Any:
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * arguments)
        return kind(self.image.address(name))


def aligned(size: int) -> np.ndarray[Any, Any]:
    """Zeroed bytes at a 64-byte boundary."""
    raw = np.zeros(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


def context(threads: int) -> tuple[np.ndarray[Any, Any], Any]:
    """A call context whose `parallel` runs equal parts one after another, and its callback."""
    ctx = aligned(8 * CTX_SLOTS).view(np.int64)

    def parallel(ctx_address: int, region: int, closure: int, extent: int) -> None:
        for n in range(threads):
            begin, end = n * extent // threads, (n + 1) * extent // threads
            _REGION(region)(closure, n, begin, end)

    callback = _PARALLEL(parallel)
    ctx[CTX_PARALLEL] = ctypes.cast(callback, ctypes.c_void_p).value
    ctx[CTX_THREADS] = threads
    return ctx, callback


def prepare(
    kernel: Kernel, machine: CpuMachine | None = None, threads: int = 1, **options: Any
) -> Any:
    """A function of arrays (one per parameter, in order) that returns the status."""
    made = compile_kernel(kernel, machine or host(), **options)
    loaded = Loaded(made.object_bytes)
    f = loaded.function(made.symbol, len(kernel.params) + 2)
    ctx, callback = context(threads)
    workspace = aligned(
        max(64, made.workspace_bytes + threads * made.workspace_per_thread)
    )

    def run(*arrays: np.ndarray[Any, Any]) -> int:
        assert loaded is not None and callback is not None
        ctx[CTX_STATUS] = 0
        f(ctx.ctypes.data, *(a.ctypes.data for a in arrays), workspace.ctypes.data)
        return int(ctx[CTX_STATUS])

    return run


def run_native(
    kernel: Kernel,
    buffers: Mapping[Buffer, np.ndarray[Any, Any]],
    threads: int = 1,
    **options: Any,
) -> int:
    """Run `kernel` in place on contiguous arrays; returns the call's status (0: success)."""
    for b in kernel.params:
        assert buffers[b].flags.c_contiguous and buffers[b].dtype == b.dtype.numpy
    status = prepare(kernel, threads=threads, **options)(
        *(buffers[b] for b in kernel.params)
    )
    return int(status)
