"""The host's part in an open extent: a bounded array is cut to its counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tilewright.base.errors import ExecutionError
from tilewright.base.text import plural
from tilewright.runtime import host

PROVIDER = "trim"
_ALL: Final = slice(None)


def make(op: str, attributes: Mapping[str, Any]) -> host.HostKernel:
    """What cuts its first operand along `axes` to the counts that follow it.

    A count is never trusted beyond its bound: ExecutionError names the axis.
    """
    axes = tuple(int(a) for a in attributes["axes"])

    def trim(operands: Sequence[Any]) -> list[Any]:
        x, *counts = operands
        cut = [_ALL] * x.ndim
        for axis, given in zip(axes, counts, strict=True):
            count = int(given)
            if not 0 <= count <= x.shape[axis]:
                raise ExecutionError(
                    f"axis {axis} has {plural(count, 'element')}, of at most {x.shape[axis]}"
                )
            cut[axis] = slice(count)
        return [x[tuple(cut)]]

    return trim


host.register(PROVIDER, make)
