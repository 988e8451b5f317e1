"""Running the work on constants at compile time: weights are packed here, once."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.base.errors import ExecutionError, VerifyError
from tilewright.driver.compiled import CompiledGroup
from tilewright.runtime import abi
from tilewright.runtime.buffer import address, empty
from tilewright.runtime.call import report
from tilewright.runtime.loader import link


class ConstantPacker:
    """Links the preparation kernels of a model on this machine and runs them."""

    def __init__(self, stages: Sequence[CompiledGroup]) -> None:
        parts = (zip(s.preparations, s.prepare_code, strict=True) for s in stages)
        objects = {p.symbol: code for part in parts for p, code in part}
        self._image = link(list(objects.values()), list(objects)) if objects else None

    def run(
        self,
        stage: CompiledGroup,
        values: Sequence[np.ndarray[Any, Any] | None],
        results: Mapping[int, np.ndarray[Any, Any]],
    ) -> None:
        """A fusion group's preparations into `results`; `values` are its interface's constants.

        results: bytes by the number of the preparation; what has none here is forgotten.

        requires, else VerifyError: each input is a constant, or the result of a preparation in
        front. What a preparation leaves out of its result is zero, and not what was in memory
        before: constants are part of artifacts. Several threads may do this at once, each for
        another fusion group.
        """
        context = empty((abi.CTX_SLOTS,), np.dtype(np.uint64))
        context[:] = 0
        context[abi.CTX_THREADS] = 1
        made: list[np.ndarray[Any, Any]] = []
        for n, p in enumerate(stage.preparations):
            assert self._image is not None
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
            out[...] = 0
            pointers = [context, *arrays, out, scratch]
            function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(pointers))(
                self._image.address(p.symbol)
            )
            function(*[address(a) for a in pointers])
            if context[abi.CTX_STATUS]:
                found = int(context[abi.CTX_REPORT])
                reason = report(found) if found else "a preparation of constants failed"
                raise ExecutionError(reason, where=p.symbol, code="TW-BOUNDS")
