"""Work on constants at compile time, such as packing weights."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.base.dtypes import dtype_of
from tilewright.base.errors import ExecutionError, VerifyError
from tilewright.compute.canonical import canonical_tree
from tilewright.driver.compiled import CompiledGroup, Preparation
from tilewright.driver.constants import Bytes, ConstantPool, PackedWeight
from tilewright.driver.packing import packing_of
from tilewright.expr.nodes import Buffer, fixed
from tilewright.ir.node import postorder
from tilewright.loops.nodes import For, Kernel
from tilewright.runtime import abi
from tilewright.runtime.buffer import address, bytes_of, empty
from tilewright.runtime.call import report
from tilewright.runtime.loader import link
from tilewright.runtime.packing import Packing
from tilewright.targets.base import Artifact, Target
from tilewright.targets.permitted import Permissions


def nameless(kernel: Kernel) -> str:
    """A text of a kernel that does not depend on its name or those of its buffers and loops."""
    loops = (n.var.name for n in postorder(kernel.body) if isinstance(n, For))
    notes = [sorted(kernel.notes.get(name, {}).items()) for name in loops]
    return f"{canonical_tree(kernel.body, kernel.params)}\n{notes}"


class PreparationCompiler:
    """Compiles work on constants for this machine; equal work of several layers only once."""

    def __init__(self, host: Target, sanitize: bool) -> None:
        self._host = host
        self._permitted: Permissions | None = {} if sanitize else None
        self._made: dict[str, Artifact] = {}

    def compile(
        self,
        kernels: Sequence[Kernel],
        position: dict[str, int],
        read: Collection[Buffer],
    ) -> tuple[tuple[Preparation, ...], tuple[bytes, ...]]:
        """Preparations in order, and their code.

        position: the index of each tensor in the interface by name; results are added. read: the
        requested results; intermediate results that only a packing uses are omitted.
        """
        found: list[Preparation] = []
        codes: list[bytes] = []
        for kernel, packed in _needed(kernels, {b.name for b in read}):
            result = kernel.outputs[0]
            if packed is None:
                made = self._artifact(kernel)
                packing = None
                inputs = kernel.inputs
            else:
                source, packing = packed
                made = Artifact(packing.symbol, b"")
                inputs = (source,)
            number = len(found)
            found.append(
                Preparation(
                    made.symbol,
                    tuple(position[b.name] for b in inputs),
                    result.shape,
                    result.dtype.name,
                    fixed(made.workspace, kernel.name),
                    packing,
                )
            )
            codes.append(made.code)
            position[result.name] = -1 - number
        return tuple(found), tuple(codes)

    def _artifact(self, kernel: Kernel) -> Artifact:
        text = nameless(kernel)
        if text not in self._made:
            symbol = f"prepare_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
            scheduled = self._host.default_schedule(kernel, (), ()).kernel
            self._made[text] = self._host.emit(scheduled, symbol, self._permitted)
        return self._made[text]


def _needed(
    kernels: Sequence[Kernel], read: Collection[str]
) -> list[tuple[Kernel, tuple[Buffer, Packing] | None]]:
    """The kernels that make what is read, in order, with what they are as packings."""
    made: dict[str, Kernel] = {}
    found: list[tuple[Kernel, tuple[Buffer, Packing] | None]] = []
    for kernel in kernels:
        found.append((kernel, packing_of(kernel, made)))
        made[kernel.outputs[0].name] = kernel
    needed = set(read)
    for kernel, packed in reversed(found):
        if packed is None and kernel.outputs[0].name in needed:
            needed |= {b.name for b in kernel.inputs}
    return [item for item in found if item[0].outputs[0].name in needed]


class ConstantPacker:
    """Links the preparation kernels of a model on this machine and runs them."""

    def __init__(self, stages: Sequence[CompiledGroup]) -> None:
        parts = (zip(s.preparations, s.prepare_code, strict=True) for s in stages)
        objects = {p.symbol: code for part in parts for p, code in part if code}
        self._image = link(list(objects.values()), list(objects)) if objects else None

    def run(
        self,
        stage: CompiledGroup,
        values: Sequence[np.ndarray[Any, Any] | None],
        results: Mapping[int, np.ndarray[Any, Any]],
    ) -> None:
        """Run a fusion group's preparations into `results`; `values` are its interface's constants.

        results: bytes by the number of the preparation; other preparations' results are dropped.

        requires, else VerifyError: each input is a constant, or the result of an earlier
        preparation. Elements that a preparation does not write are zero, not previous memory
        contents: constants are part of artifacts. Several threads may do this concurrently, each
        for another fusion group.
        """
        context = empty((abi.CTX_SLOTS,), np.dtype(np.uint64))
        context[:] = 0
        context[abi.CTX_THREADS] = 1
        made: list[np.ndarray[Any, Any]] = []
        read = {-1 - k for p in stage.preparations for k in p.inputs}
        for n, p in enumerate(stage.preparations):
            out = results.get(n)
            if out is None and n not in read:
                made.append(empty((0,), np.dtype(np.uint8)))
                continue
            if out is None:
                out = empty((p.nbytes,), np.dtype(np.uint8))
            made.append(out)
            scratch = empty((p.workspace + 1,), np.dtype(np.uint8))
            given = [made[-1 - k] if k < 0 else values[k] for k in p.inputs]
            arrays = [np.ascontiguousarray(a) for a in given if a is not None]
            if len(arrays) < len(given):
                raise VerifyError(
                    "packing reads a value that is not constant", where=p.symbol
                )
            if p.packing is not None:
                p.packing.run(bytes_of(arrays[0]), out, dtype_of(p.dtype).numpy)
                continue
            out[...] = 0
            assert self._image is not None
            pointers = [context, *arrays, out, scratch]
            function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(pointers))(
                self._image.address(p.symbol)
            )
            function(*[address(a) for a in pointers])
            if context[abi.CTX_STATUS]:
                found = int(context[abi.CTX_REPORT])
                reason = report(found) if found else "a preparation of constants failed"
                raise ExecutionError(reason, where=p.symbol, code="TW-BOUNDS")


def place_prepared(
    pool: ConstantPool,
    group: CompiledGroup,
    values: Sequence[np.ndarray[Any, Any] | None],
    packer: Callable[[], ConstantPacker],
) -> dict[int, int]:
    """Where in the pool the results are that a group's kernel reads, by their preparations.

    The same work on the same constants has one place. values: as for `ConstantPacker.run`.
    """
    values = [None if v is None else pool.arrays.first(v) for v in values]
    packed = {n: _packed_weight(group.preparations[n], values) for n in group.kept}
    places = {n: pool.place_packed(p) for n, p in packed.items() if p is not None}
    kept = tuple(n for n in group.kept if n not in places)
    if not kept:
        return places
    work = tuple(
        (p.symbol, *(id(values[n]) if n >= 0 else n for n in p.inputs))
        for p in group.preparations
    )

    def fill(views: Sequence[Bytes]) -> None:
        packer().run(group, values, dict(zip(kept, views, strict=True)))

    sizes = [group.preparations[n].nbytes for n in kept]
    offsets = pool.place((kept, work), sizes, fill)
    return places | dict(zip(kept, offsets, strict=True))


def _packed_weight(
    p: Preparation, values: Sequence[np.ndarray[Any, Any] | None]
) -> PackedWeight | None:
    """What of the model's constants a packing makes its result of."""
    number = p.inputs[0] if p.inputs else -1
    weight = values[number] if number >= 0 else None
    if p.packing is None or weight is None:
        return None
    return PackedWeight(weight, p.packing, p.dtype)
