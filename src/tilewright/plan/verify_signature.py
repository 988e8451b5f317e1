"""Checking that a schedule's input accesses the same elements as its group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.errors import VerifyError
from tilewright.compute.check import check
from tilewright.compute.local_results import owns_results, written_often
from tilewright.compute.nodes import Computation
from tilewright.compute.regions import read, written
from tilewright.expr.nodes import Buffer
from tilewright.plan.nodes import FusionGroup
from tilewright.plan.normalize import KernelSignature

Elements = np.ndarray[Any, np.dtype[np.int64]]


def verify_signature(group: FusionGroup, signature: KernelSignature) -> None:
    """Raise VerifyError for an interface on which a schedule would compute something else.

    M(b) are the elements of a value b in memory order. The errors are:

        TW-SIGNATURE-WRITES   the Computations, from the offset on, do not write the same elements
                              of M(b) as the group, or not as often
        TW-SIGNATURE-READS    they do not read the same elements of M(b) as the group
        TW-SIGNATURE-RESULT   a reduction does not fill its result, or shares it with another writer

    In addition, each Computation must be well formed (`compute/check.py`).
    """
    if signature.kernel is not None:
        return
    shared = written_often(signature.computations)
    for c in signature.computations:
        check(c)
        if not c.is_map and not owns_results(c, shared):
            raise VerifyError(
                f"{c.outputs[0].tensor!r} is the result of a reduction that does not fill it alone",
                code="TW-SIGNATURE-RESULT",
                where=f"group {group.name}, computation {c.name}",
            )
    for value, param, offset in zip(
        signature.values, signature.params, signature.offsets, strict=True
    ):
        start = offset // value.dtype.itemsize
        for code, verb, found in (
            ("TW-SIGNATURE-WRITES", "write", _written),
            ("TW-SIGNATURE-READS", "read", _read),
        ):
            before = found(group.computations, value)
            after = found(signature.computations, param) + start
            if value.size != param.size or not np.array_equal(before, after):
                raise VerifyError(
                    f"the kernel {verb}s {_shown(after)} of {value!r}, the stage {_shown(before)}",
                    code=code,
                    where=f"group {group.name}",
                )


def _written(computations: Sequence[Computation], b: Buffer) -> Elements:
    """The memory positions of all elements written, with multiplicity, in order."""
    counts = sum((written(c, b) for c in computations), np.zeros(b.shape, np.int64))
    return np.repeat(np.arange(b.size), counts.reshape(-1))


def _read(computations: Sequence[Computation], b: Buffer) -> Elements:
    """The memory positions of all elements read, each once, in order."""
    mask = np.zeros(b.shape, np.bool_)
    for c in computations:
        mask |= read(c, b)
    return np.flatnonzero(mask)


def _shown(places: Elements) -> str:
    if not places.size:
        return "nothing"
    return f"{places.size} elements from {places[0]} to {places[-1]}"
