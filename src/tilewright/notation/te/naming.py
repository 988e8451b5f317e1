"""Names for what the user did not name: those of the variables that the call's result goes to.

`C = compute(...)` makes a tensor called C. It is read off the caller's next instructions, so it
costs nothing but the look, and where a result is not assigned (or Python is not CPython) there is
no name; nothing depends on names but how programs print.
"""

from __future__ import annotations

import dis
import sys
from pathlib import Path
from types import FrameType
from typing import Final

_OURS: Final = ("tilewright.notation.te", "tilewright.lang.te")


def _caller() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(_OURS):
        frame = frame.f_back
    return frame


def caller_line() -> str:
    """The user's line that is running, as `file.py:12`."""
    frame = _caller()
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def assigned() -> list[str]:
    """The variables that the call into this package is assigned to; empty where to none."""
    frame = _caller()
    if frame is None:
        return []
    later = (i for i in dis.get_instructions(frame.f_code) if i.offset > frame.f_lasti)
    first = next(later, None)
    if first is None:
        return []
    if first.opname != "UNPACK_SEQUENCE":
        return _stored(first)[:1]
    names: list[str] = []
    for instruction in later:
        found = _stored(instruction)
        if not found:
            break
        names += found
    return names[: first.arg]


def _stored(instruction: dis.Instruction) -> list[str]:
    """What one instruction stores; some versions of Python fuse two of them."""
    if not instruction.opname.startswith("STORE_") or instruction.opname == "STORE_SUBSCR":
        return []
    value = instruction.argval
    names = list(value) if isinstance(value, tuple) else [value]
    if instruction.opname == "STORE_FAST_LOAD_FAST":
        names = names[:1]
    return [n for n in names if isinstance(n, str) and not n.startswith("_")]


def fresh(taken: set[str], name: str) -> str:
    """`name`, or with `_2`, `_3`, ... where that is taken; and takes it."""
    candidate, n = name, 1
    while candidate in taken:
        n += 1
        candidate = f"{name}_{n}"
    taken.add(candidate)
    return candidate
