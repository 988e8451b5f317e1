"""Names for unnamed tensors and axes: the variables they are assigned to.

`C = compute(...)` makes a tensor named C. The name is read from the caller's next bytecode
instructions, which is cheap; a result that is not assigned (or a Python other than CPython) gets no
name. Names only affect how programs print.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Final

_STORES: Final = ("STORE_NAME", "STORE_FAST", "STORE_GLOBAL", "STORE_DEREF")
_SILENT: Final = ("CACHE", "EXTENDED_ARG", "KW_NAMES", "NOP")
_JUMPS: Final = {*dis.hasjrel, *dis.hasjabs}
_OURS: Final = ("tilewright.lang.te.syntax", "tilewright.lang.te")


def _caller() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(
        _OURS
    ):
        frame = frame.f_back
    return frame


def caller_line() -> str:
    """The user's line that is running, as `file.py:12`."""
    frame = _caller()
    return (
        ""
        if frame is None
        else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
    )


def assigned() -> list[str]:
    """The variables that the call into this package is assigned to; empty where to none.

    Follows the place of the call's result on the stack: `A, B = f(), g()` stores it later.
    """
    frame = _caller()
    if frame is None:
        return []
    later = (i for i in dis.get_instructions(frame.f_code) if i.offset > frame.f_lasti)
    depth = 0  # values above the result
    for i in later:
        stored = _stored(i)
        if depth < len(stored):
            return _words([stored[depth]])
        if i.opname == "UNPACK_SEQUENCE" and depth == 0:
            names = [name for store in islice(later, i.arg) for name in _stored(store)]
            return _words(names[: i.arg])
        moved = _moved(i, depth, later)
        if moved is None:
            return []
        depth = moved
    return []


def _moved(
    i: dis.Instruction, depth: int, later: Iterator[dis.Instruction]
) -> int | None:
    """The values above the result after an instruction; None where it uses the result up."""
    if i.opname in _SILENT:
        return depth
    if i.opcode in _JUMPS:
        return None
    count = i.arg or 0
    if i.opname == "SWAP":
        return {0: count - 1, count - 1: 0}.get(depth, depth)
    if i.opname == "BUILD_TUPLE" and depth < count:
        unpacks = next(later, i).opname == "UNPACK_SEQUENCE"
        return count - 1 - depth if unpacks else None
    takes = i.opcode >= dis.HAVE_ARGUMENT
    left = depth + dis.stack_effect(i.opcode, count if takes else None)
    return (
        left if left > 0 or _stored(i) else None
    )  # what is not a store leaves a value on top


def _stored(i: dis.Instruction) -> list[str]:
    """The variables that an instruction stores into, the top of the stack first."""
    if not i.opname.startswith(_STORES):
        return []
    if not isinstance(i.argval, tuple):
        return [i.argval]
    if i.opname == "STORE_FAST_STORE_FAST":
        return list(i.argval)
    return [i.argval[0]]


def _words(names: list[str]) -> list[str]:
    """The names, if all of them are meant to be seen."""
    if all(n.isidentifier() and n[0] != "_" for n in names):
        return names
    return []
