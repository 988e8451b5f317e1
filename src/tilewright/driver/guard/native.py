"""Calls one compiled kernel on tensors in guarded memory."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import dtype_of
from tilewright.base.guarded import Guarded, poison
from tilewright.base.text import plural
from tilewright.driver.compiled import CompiledGroup
from tilewright.expr.nodes import Buffer
from tilewright.plan.normalize import KernelSignature
from tilewright.runtime import abi
from tilewright.runtime.call import report
from tilewright.runtime.loader import CodeImage, link

Array = np.ndarray[Any, Any]
_WORKSPACE_ITEM = 4  # a workspace is poisoned as float32


@dataclass(frozen=True, slots=True)
class GuardedRun:
    """One way to run a kernel.

    data: the kind of random data. right: tensors end at a page boundary, rather than start at one.
    second: memory is poisoned with the other pattern. shared: the number of the input whose memory
    the last output takes.
    """

    data: str
    right: bool = True
    second: bool = False
    threads: int = 1
    shared: int | None = None

    def __str__(self) -> str:
        side = "behind" if self.right else "before"
        threads = plural(self.threads, "thread")
        place = (
            ""
            if self.shared is None
            else f", result in the memory of input {self.shared}"
        )
        return f"{self.data}, guarded {side}, {threads}{place}"


@dataclass(eq=False)
class KernelRunner:
    """Runs one kernel.

    sizes: the values of the sizes that the code reads. After a run, `held` maps numbers in the
    interface to tensors, and `said` is the report of sanitized code.
    """

    signature: KernelSignature
    code: CompiledGroup
    fixed: Sequence[bool]
    sizes: Sequence[int] = ()
    held: dict[int, Guarded] = field(default_factory=dict)
    others: list[Guarded] = field(default_factory=list)
    said: str = ""

    def __post_init__(self) -> None:
        packing = dict.fromkeys(code for code in self.code.prepare_code if code)
        codes = [self.code.code, *packing]
        self._image: CodeImage = link(
            codes, [self.code.symbol, *(f"{n}" for n in range(len(codes)))]
        )

    @property
    def places(self) -> list[Guarded]:
        """All the memory of the current run."""
        return [*self.held.values(), *self.others]

    def run(self, run: GuardedRun, arrays: Mapping[Buffer, Array]) -> int:
        """Call the kernel and return its status. arrays: inputs, and outputs that it also reads."""
        self.held, self.others = {}, []
        outputs = len(self.signature.values) - len(self.signature.outputs)
        for n, b in enumerate(self.signature.values):
            if run.shared is not None and n == len(self.signature.values) - 1:
                self.held[n] = self.held[run.shared]
                continue
            size = b.dtype.itemsize
            held = self.held[n] = Guarded(b.name, b.size * size, run.right)
            if b in arrays:
                held.bytes[:] = (
                    np.ascontiguousarray(arrays[b]).reshape(-1).view(np.uint8)
                )
            else:
                held.bytes[:] = poison(size, b.dtype.is_float, held.nbytes, run.second)
            if n < outputs and n != run.shared:
                held.close_for_writing()
        prepared = self._prepare(run)
        addresses = [
            prepared[-1 - k].start
            if k < 0
            else self.held[k].start + self.signature.offsets[k]
            for k in self.code.arguments
        ]
        scratch = self.code.workspace + run.threads * self.code.thread_workspace
        workspace = self._memory("the workspace", scratch, run)
        return self._call(self.code.symbol, [*addresses, workspace.start], run.threads)

    def _prepare(self, run: GuardedRun) -> list[Guarded]:
        """Run the kernel's preparations and return the constants that they make."""
        made: list[Guarded] = []
        for n, p in enumerate(self.code.preparations):
            made.append(self._memory(f"prepared constant {n}", p.nbytes, run))
            given = [made[-1 - k] if k < 0 else self.held[k] for k in p.inputs]
            if p.packing is not None:
                dtype = dtype_of(p.dtype).numpy
                p.packing.run(given[0].bytes, made[-1].bytes, dtype)
                continue
            workspace = self._memory(
                f"the workspace of preparation {n}", p.workspace, run
            )
            self._call(p.symbol, [g.start for g in (*given, made[-1], workspace)], 1)
        for constant in made:
            constant.close_for_writing()
        return made

    def _memory(self, name: str, nbytes: int, run: GuardedRun) -> Guarded:
        held = Guarded(name, nbytes, run.right)
        held.bytes[:] = poison(_WORKSPACE_ITEM, True, nbytes, run.second)
        self.others.append(held)
        return held

    def _call(self, symbol: str, addresses: Sequence[int], threads: int) -> int:
        context = (ctypes.c_uint64 * (abi.CTX_SLOTS + abi.ALIGNMENT // 8))()
        at = ctypes.addressof(context)
        start = at + -at % abi.ALIGNMENT
        slots = (ctypes.c_uint64 * abi.CTX_SLOTS).from_address(start)
        slots[abi.CTX_THREADS] = threads
        slots[abi.CTX_PARALLEL] = ctypes.cast(_PARALLEL, ctypes.c_void_p).value or 0
        sizes = (ctypes.c_int64 * max(1, len(self.sizes)))(*self.sizes)
        slots[abi.CTX_SIZES] = ctypes.addressof(sizes)
        pointers = [start, *addresses]
        kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(pointers))
        kind(self._image.address(symbol))(*pointers)
        status = int(slots[abi.CTX_STATUS])
        self.said = report(slots[abi.CTX_REPORT]) if slots[abi.CTX_REPORT] else ""
        return status


_PARTS = 1024  # most loops are shorter: each part is one iteration
_REGION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int64] * 3)


def _backwards(context: int, region: int, closure: int, extent: int) -> None:
    """Run a parallel loop serially in at most _PARTS parts, the last part first.

    Threads may run parts in any order. Here, a part that wrongly depends on an earlier one reads
    stale data. Successive parts get the numbers of different threads.
    """
    threads = ctypes.c_uint64.from_address(context + 8 * abi.CTX_THREADS).value
    function = _REGION(region)
    step = max(1, -(-extent // _PARTS))
    for begin in reversed(range(0, extent, step)):
        thread = begin // step % threads
        function(closure, thread, begin, min(begin + step, extent))


_PARALLEL = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)(_backwards)
