"""Operators of any size by name."""

from __future__ import annotations

import re

from tilewright.lift.nodes import DeviceOp

Key = tuple[str, tuple[int, ...]]


def operator_of(op: DeviceOp) -> Key:
    """`MVMul`, and its sizes, of `MVMul128x64`."""
    found = re.match("[A-Za-z]+", op.name)
    return (op.name if found is None else found[0]), op.sizes
