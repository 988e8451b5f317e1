"""A compiled kernel called alone, on tensors that lie between guard bands."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.driver.compiled import CompiledStage
from tilewright.driver.kernels import Interface
from tilewright.driver.prepare import Preparer
from tilewright.expr.nodes import Buffer
from tilewright.runtime import abi
from tilewright.runtime.buffer import address, empty
from tilewright.runtime.loader import link

Array = np.ndarray[Any, Any]
BAND = 4096  # bytes before and behind each tensor
MARK = 0xA5  # what they hold

_REGION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class Guarded:
    """Memory of one tensor; `array` is what the kernel gets."""

    def __init__(self, size: int) -> None:
        self.block = empty((size + 2 * BAND + abi.ALIGNMENT,), np.dtype(np.uint8))
        self.block[:] = MARK
        start = -(address(self.block) + BAND) % abi.ALIGNMENT + BAND
        self.bytes = self.block[start : start + size]
        self.bands = (self.block[:start], self.block[start + size :])

    @property
    def intact(self) -> bool:
        """Whether nothing was written around the tensor."""
        return all((band == MARK).all() for band in self.bands)


def call(
    face: Interface,
    code: CompiledStage,
    memory: Mapping[Buffer, Array],
    fixed: Sequence[bool],
    *,
    threads: int = 1,
    shared: int | None = None,
) -> tuple[dict[Buffer, Array], list[str]]:
    """Every value of the interface after the call, and what it did that it must not.

    memory: what each value holds before. fixed: which are constants. threads: shares of parallel
    regions, run one after another, the last first. shared: the index of a value whose memory the
    last one, an output, takes.
    """
    places = [Guarded(b.size * b.dtype.itemsize) for b in face.values]
    if shared is not None:
        places[-1] = places[shared]
    for n, (b, place) in enumerate(zip(face.values, places, strict=True)):
        if shared is None or n != len(places) - 1:
            place.bytes[:] = np.ascontiguousarray(memory[b]).reshape(-1).view(np.uint8)
    data = [memory[b] if known else None for b, known in zip(face.values, fixed, strict=True)]
    packed = [Guarded(p.nbytes) for p in code.preparations]
    Preparer([code]).run(code, data, [p.bytes for p in packed])
    scratch = Guarded(code.workspace + threads * code.thread_workspace)
    arguments = [
        address(packed[-1 - k].bytes) if k < 0 else address(places[k].bytes) + face.offsets[k]
        for k in code.arguments
    ]
    status = _run(code, [*arguments, address(scratch.bytes)], threads)
    wrong = [] if status == 0 else [f"it failed with code {status & 255}"]
    named = [(f"{b!r}", p) for b, p in zip(face.values, places, strict=True)]
    named += [("packed constants", p) for p in packed] + [("its workspace", scratch)]
    wrong += [f"it wrote beyond {name}" for name, place in named if not place.intact]
    after = {
        b: place.bytes.view(b.dtype.numpy).reshape(b.shape)
        for b, place in zip(face.values, places, strict=True)
    }
    outputs = set(face.values[len(face.values) - len(face.outputs) :])
    for n, b in enumerate(face.values):
        if b not in outputs and n != shared and not _same(after[b], memory[b]):
            wrong.append(f"it wrote {b!r}, which it only reads")
    return after, wrong


def _same(a: Array, b: Array) -> bool:
    return a.tobytes() == b.tobytes()


def _run(code: CompiledStage, arguments: Sequence[int], threads: int) -> int:
    context = empty((abi.CTX_SLOTS,), np.dtype(np.uint64))
    context[:] = 0
    context[abi.CTX_THREADS] = threads

    def parallel(_: int, region: int, closure: int) -> None:
        share: Callable[..., None] = _REGION(region)
        for n in reversed(range(threads)):
            share(closure, n, threads)

    callback = _PARALLEL(parallel)
    context[abi.CTX_PARALLEL] = ctypes.cast(callback, ctypes.c_void_p).value or 0
    image = link([code.code], [code.symbol])
    pointers = [address(context), *arguments]
    function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(pointers))(
        image.address(code.symbol)
    )
    function(*pointers)
    return int(context[abi.CTX_STATUS])
