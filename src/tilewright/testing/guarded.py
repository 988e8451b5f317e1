"""Calls a single compiled kernel in guarded memory, on given contents of its tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.driver.compiled import CompiledGroup
from tilewright.driver.guard.native import GuardedRun, KernelRunner
from tilewright.driver.guard.process import apart
from tilewright.expr.nodes import Buffer
from tilewright.plan.normalize import KernelSignature

Array = np.ndarray[Any, Any]


def call(
    signature: KernelSignature,
    code: CompiledGroup,
    memory: Mapping[Buffer, Array],
    fixed: Sequence[bool],
    *,
    threads: int = 1,
    shared: int | None = None,
) -> tuple[dict[Buffer, Array], list[str]]:
    """Every value of the interface after the call, and the call's violations.

    memory: the contents of each value before the call. fixed: which values are constants. threads:
    shares of parallel regions, run one after another, the last first. shared: the index of a value
    whose memory the last value, an output, reuses. There are no values if a wrong access ends the
    call.
    """
    bench = KernelRunner(signature, code, fixed)

    def work() -> tuple[list[Array], list[str]]:
        status = (
            bench.run(
                GuardedRun("given values", threads=threads, shared=shared), memory
            )
            & 255
        )
        wrong = [f"it failed with code {status}"] if status else []
        spilled = (held.spilled() for held in dict.fromkeys(bench.places))
        wrong += [f"it wrote {place}" for place in spilled if place is not None]
        return [bench.held[n].bytes.copy() for n in range(len(signature.values))], wrong

    after, wrong = apart(work, lambda: bench.places, lambda text: ([], [text]))
    return {
        b: array.view(b.dtype.numpy).reshape(b.shape)
        for b, array in zip(signature.values, after, strict=False)
    }, wrong
