"""Runs the work on constants at compile time: weights are packed here, once."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.driver.kernels import CompiledStage
from tilewright.runtime import abi
from tilewright.runtime.buffer import address, empty
from tilewright.runtime.loader import link


class Preparer:
    """Links the preparation kernels of a model on this machine and runs them."""

    def __init__(self, stages: Sequence[CompiledStage]) -> None:
        objects = {c: None for s in stages for c in s.prepare_code}
        self._image = link(list(objects)) if objects else None
        self._context = empty((abi.CTX_SLOTS,), np.dtype(np.uint64))
        self._context[:] = 0
        self._context[abi.CTX_THREADS] = 1

    def run(
        self,
        stage: CompiledStage,
        values: Sequence[np.ndarray[Any, Any] | None],
        results: Sequence[np.ndarray[Any, Any]],
    ) -> None:
        """A Stage's preparations into `results`; `values` are its interface's constants."""
        for p, out in zip(stage.preparations, results, strict=True):
            assert self._image is not None
            scratch = empty((p.workspace + 1,), np.dtype(np.uint8))
            given = [results[-1 - n] if n < 0 else values[n] for n in p.inputs]
            arrays = [np.ascontiguousarray(a) for a in given if a is not None]
            pointers = [self._context, *arrays, out, scratch]
            function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(pointers))(
                self._image.address(p.symbol)
            )
            function(*[address(a) for a in pointers])
