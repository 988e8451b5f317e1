"""Work on constants at compile time, such as packing weights."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.base.dtypes import dtype_of
from tilewright.base.errors import ExecutionError, VerifyError
from tilewright.compute.canonical import canonical_tree
from tilewright.driver.compiled import CompiledGroup, Preparation
from tilewright.driver.strided import bytes_of, strided_copy
from tilewright.expr.nodes import fixed
from tilewright.ir.node import postorder
from tilewright.loops.nodes import For, Kernel
from tilewright.runtime import abi
from tilewright.runtime.buffer import address, empty
from tilewright.runtime.call import report
from tilewright.runtime.loader import link
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
        self, kernels: Sequence[Kernel], position: dict[str, int]
    ) -> tuple[tuple[Preparation, ...], tuple[bytes, ...]]:
        """Preparations in order, and their code.

        position: the index of each tensor in the interface by name; results are added.
        """
        found: list[Preparation] = []
        codes: list[bytes] = []
        for n, kernel in enumerate(kernels):
            view = strided_copy(kernel)
            made = (
                self._artifact(kernel) if view is None else Artifact(view.symbol, b"")
            )
            result = kernel.outputs[0]
            found.append(
                Preparation(
                    made.symbol,
                    tuple(position[b.name] for b in kernel.inputs),
                    result.shape,
                    result.dtype.name,
                    fixed(made.workspace, kernel.name),
                    view,
                )
            )
            codes.append(made.code)
            position[result.name] = -1 - n
        return tuple(found), tuple(codes)

    def _artifact(self, kernel: Kernel) -> Artifact:
        text = nameless(kernel)
        if text not in self._made:
            symbol = f"prepare_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
            scheduled = self._host.default_schedule(kernel, (), ()).kernel
            self._made[text] = self._host.emit(scheduled, symbol, self._permitted)
        return self._made[text]


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
        for n, p in enumerate(stage.preparations):
            out = results.get(n)
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
            if p.view is not None:
                p.view.run(bytes_of(arrays[0]), out, dtype_of(p.dtype).itemsize)
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
