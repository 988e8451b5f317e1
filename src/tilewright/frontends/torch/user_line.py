"""The user's line for an operator, from the stack trace that PyTorch keeps."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Final

_FRAME: Final = re.compile(
    r'\s*File "(?:[^"]*[/\\])?([\w.\-]+)", line (\d{1,9}), in .*'
)
# Modules of PyTorch that the user calls but did not write.
_LIBRARY: Final = re.compile(r"[/\\](?:site|dist)-packages[/\\]torch[/\\]")


def user_line(trace: object) -> tuple[str, int] | None:
    """File name (without folders) and line of the innermost frame outside PyTorch.

    The innermost of all if every frame is PyTorch's; None if the trace has no frame.
    """
    if isinstance(trace, str):
        lines = trace.splitlines()
    else:
        lines = []
    frames = [(text, found) for text in lines if (found := _FRAME.fullmatch(text))]
    own = [found for text, found in frames if not _LIBRARY.search(text)]
    chosen = own or [found for _, found in frames]
    if chosen:
        return (chosen[-1][1], int(chosen[-1][2]))
    return None


def raising_line(error: BaseException) -> tuple[str, int] | None:
    """As `user_line`, of the frames below the one that caught it; None if all are PyTorch's."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    own = [f for f in frames if not _LIBRARY.search(f.filename)]
    # Not code that PyTorch generates.
    own = [f for f in own if Path(f.filename).is_file()]
    if not own:
        return None
    last = own[-1]
    return Path(last.filename).name, last.lineno or 0
