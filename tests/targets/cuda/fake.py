"""A double of NVIDIA's bindings: it records calls, holds memory, and fails where it is told to."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from enum import IntEnum
from itertools import accumulate
from operator import mul
from types import SimpleNamespace
from typing import Any

import numpy as np

from tilewright.testing.ptx.boxes import EncodedMap
from tilewright.testing.ptx.machine import run
from tilewright.testing.ptx.memory import CallerMemory
from tilewright.testing.ptx.text import kernels


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_PTX = 218
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_LAUNCH_TIMEOUT = 702
    CUDA_ERROR_NOT_PERMITTED = 800


OF = {
    "COMPUTE_CAPABILITY_MAJOR": 8,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MAX_THREADS_PER_BLOCK": 1024,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 163 << 10,
    "MEMORY_POOLS_SUPPORTED": 1,
    "INTEGRATED": 0,
}


class Fake:
    """fails: the error of each call by its name. total: bytes of memory, of which others have some.
    count: of GPUs. has: attributes that differ. Memory is bytes of the host, so that copies can be
    told; it belongs to the GPU whose context is current."""

    def __init__(
        self,
        fails: dict[str, CUresult] | None = None,
        total: int = 80 << 30,
        others: int = 0,
        count: int = 1,
        **has: int,
    ) -> None:
        self.calls: list[str] = []
        self.launches: list[tuple[Any, ...]] = []
        self.fails = dict(fails or {})
        self.memory: dict[int, Any] = {}
        self.freed: list[int] = []
        self.freed_on: list[Any] = []  # the stream of each
        self.capturing = False
        attributes = {f"CU_DEVICE_ATTRIBUTE_{k}": v for k, v in {**OF, **has}.items()}
        self.total, self.others, self.count = total, others, count
        self.filled = 0  # copies on the GPU
        self.pooled = 0  # bytes that our pool keeps although they are free
        self.current: Any = None
        self.owners: dict[int, Any] = {}
        pool = ("RESERVED_MEM_CURRENT", "USED_MEM_CURRENT")
        named = {f"CU_MEMPOOL_ATTR_{name}": name for name in pool}
        self.CUmemPool_attribute = SimpleNamespace(**named)
        self.CUdevice_attribute = SimpleNamespace(**attributes)
        most = "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
        self.CUfunction_attribute = SimpleNamespace(**{most: most})
        local = "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL"
        self.CUstreamCaptureMode = SimpleNamespace(**{local: local})
        for kind, names in MAPS.items():
            named = {f"CU_TENSOR_MAP_{name}": name for name in names}
            setattr(self, f"CUtensorMap{kind}", SimpleNamespace(**named))
        # Addresses of arrays in constant memory, by the kernels of their module.
        self.symbols: dict[tuple[int, str], int] = {}
        self.modules: list[Any] = []  # so that no identity comes again
        self.cuuint32_t = self.cuuint64_t = int

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append(name.removeprefix("cu"))
            if name[2:] in self.fails:
                return (self.fails[name[2:]], *[None] * (name in TWO))
            run = getattr(self, f"_{name[2:]}", lambda *a: (name,))
            return (CUresult.CUDA_SUCCESS, *run(*arguments))

        return call

    def _StreamCreate(self, flags: int) -> tuple[int]:
        return (STREAM,)

    def _DeviceGetCount(self) -> tuple[int]:
        return (self.count,)

    def _DeviceGet(self, index: int) -> tuple[int]:
        return (index,)

    def _DevicePrimaryCtxRetain(self, device: int) -> tuple[Any]:
        return (f"context {device}",)

    def _CtxSetCurrent(self, context: Any) -> tuple[()]:
        self.current = context
        return ()

    def _DeviceGetName(self, length: int, device: Any) -> tuple[bytes]:
        return (b"NVIDIA H100".ljust(length, b"\0"),)

    def _DeviceGetAttribute(self, value: int, device: Any) -> tuple[int]:
        return (value,)

    def _DeviceTotalMem(self, device: Any) -> tuple[int]:
        return (self.total,)

    def _used(self) -> int:
        freed = set(self.freed)
        mine = (len(m) for at, m in self.memory.items() if at not in freed)
        return sum(mine)

    def _MemGetInfo(self) -> tuple[int, int]:
        return self.total - self.others - self._used() - self.pooled, self.total

    def _MemPoolGetAttribute(self, pool: Any, name: str) -> tuple[int]:
        kept = self.pooled if name.startswith("RESERVED") else 0
        return (self._used() + kept,)

    def _MemAllocAsync(self, nbytes: int, stream: Any) -> tuple[int]:
        whole = ctypes.create_string_buffer(nbytes + ALIGNED)
        shift = -ctypes.addressof(whole) % ALIGNED
        held = (ctypes.c_char * nbytes).from_buffer(whole, shift)
        self.memory[ctypes.addressof(held)] = held
        self.owners[ctypes.addressof(held)] = self.current
        return (ctypes.addressof(held),)

    def _MemFreeAsync(self, address: int, stream: Any) -> tuple[()]:
        self.freed.append(address)
        self.freed_on.append(stream)
        return ()

    def _MemsetD8Async(
        self, address: int, value: int, n: int, stream: Any
    ) -> tuple[()]:
        ctypes.memset(address, value, n)
        return ()

    def _MemcpyHtoDAsync(self, to: int, source: int, n: int, stream: Any) -> tuple[()]:
        ctypes.memmove(to, source, n)
        return ()

    _MemcpyDtoHAsync = _MemcpyHtoDAsync

    def _TensorMapEncodeTiled(
        self,
        kind: str,
        rank: int,
        address: int,
        extents: list[int],
        strides: list[int],
        sides: list[int],
        steps: list[int],
        interleave: str,
        swizzle: str,
        promotion: str,
        fill: str,
    ) -> tuple[EncodedMap]:
        """The rules of the driver's API, for rows of 128 swizzled bytes."""
        size = {"DATA_TYPE_UINT8": 1, "DATA_TYPE_UINT16": 2, "DATA_TYPE_UINT32": 4}[
            kind
        ]
        assert 1 <= rank == len(extents) == len(sides) == len(steps) <= 5
        assert address % 16 == 0 and all(0 < n <= 1 << 32 for n in extents)
        assert all(n % 16 == 0 and n < 1 << 40 for n in strides)
        dense = [size * n for n in accumulate(extents, mul)][:-1]
        assert strides == dense  # what the interpreter of PTX reads
        assert all(0 < n <= 256 for n in sides) and sides[0] * size <= 128
        assert steps == [1] * rank and interleave == "INTERLEAVE_NONE"
        assert swizzle == "SWIZZLE_128B" and fill == "FLOAT_OOB_FILL_NONE"
        assert promotion.startswith("L2_PROMOTION")
        return (EncodedMap(address, size, tuple(extents[::-1]), tuple(sides[::-1])),)

    def _EventElapsedTime(self, begin: Any, end: Any) -> tuple[float]:
        return (2.5,)

    def _LaunchKernel(self, *arguments: Any) -> tuple[()]:
        self.launches.append(arguments)
        return ()

    def __dir__(self) -> list[str]:
        return []


MAPS = {
    "DataType": [f"DATA_TYPE_UINT{bits}" for bits in (8, 16, 32)],
    "Interleave": ["INTERLEAVE_NONE", "INTERLEAVE_16B"],
    "Swizzle": ["SWIZZLE_NONE", "SWIZZLE_64B", "SWIZZLE_128B"],
    "L2promotion": ["L2_PROMOTION_NONE", "L2_PROMOTION_L2_128B"],
    "FloatOOBfill": ["FLOAT_OOB_FILL_NONE"],
}
STREAM = 4096
ALIGNED = 256  # bytes, of all memory
TWO = ("cuMemAllocAsync", "cuModuleLoadData")


class RunningFake(Fake):
    """A double that runs its kernels, by the interpreter of PTX, on its memory."""

    def _ModuleLoadData(self, image: bytes) -> tuple[Any]:
        return (kernels(image.rstrip(b"\0").decode()),)

    def _ModuleGetFunction(self, module: Any, name: bytes) -> tuple[Any]:
        return (module[name.decode()],)

    def _ModuleGetGlobal(self, module: Any, name: bytes) -> tuple[int, int]:
        symbol = name.decode()
        nbytes = next(k.const[symbol] for k in module.values())
        (address,) = self._MemAllocAsync(nbytes, STREAM)
        self.symbols |= {(id(k), symbol): address for k in module.values()}
        self.modules.append(module)
        return address, nbytes

    def _MemcpyDtoDAsync(self, *arguments: Any) -> tuple[()]:
        if self.capturing:
            self.captured.append((self._MemcpyDtoDAsync, arguments))
            return ()
        self.filled += 1
        return self._MemcpyHtoDAsync(*arguments)

    def _StreamBeginCapture(self, stream: Any, mode: Any) -> tuple[()]:
        self.captured: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self.capturing = True
        return ()

    def _StreamEndCapture(self, stream: Any) -> tuple[Any]:
        self.capturing = False
        return (self.captured,)

    def _GraphInstantiate(self, graph: Any, flags: int) -> tuple[Any]:
        return (graph,)

    def _GraphLaunch(self, graph: Any, stream: Any) -> tuple[()]:
        for command, arguments in graph:
            command(*arguments)
        return ()

    def _LaunchKernel(self, *arguments: Any) -> tuple[()]:
        if self.capturing:
            self.captured.append((self._LaunchKernel, arguments))
            return ()
        self.launches.append(arguments)
        kernel, x, y, z, a, b, c, dynamic, _, (values, kinds), _ = arguments
        maps = {n: v for n, v in enumerate(values) if isinstance(v, EncodedMap)}
        assert all((n in maps) == (kind is None) for n, kind in enumerate(kinds))
        addresses = [v.address if isinstance(v, EncodedMap) else v for v in values]
        bases = [max(m for m in self.memory if m <= at) for at in addresses]
        assert {self.owners.get(m, self.current) for m in bases} <= {self.current}
        blocks = list(dict.fromkeys(bases))
        arrays = [np.frombuffer(self.memory[m], np.uint8) for m in blocks]
        held = CallerMemory(arrays)
        start = dict(zip(blocks, held.addresses, strict=True))
        moved = [start[m] + at - m for m, at in zip(bases, addresses, strict=True)]
        given = [
            replace(maps[n], address=at) if n in maps else at
            for n, at in enumerate(moved)
        ]
        constants = {
            name: np.frombuffer(self.memory[self.symbols[id(kernel), name]], np.uint8)
            for name in kernel.const
        }
        run(kernel, (x, y, z), (a, b, c), held, given, dynamic, constants=constants)
        for n, array in enumerate(arrays):
            np.copyto(array, held.array(n, array))
        return ()
