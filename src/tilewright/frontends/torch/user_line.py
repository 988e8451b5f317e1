"""The user's line for an operator, from the stack trace that PyTorch keeps."""

from __future__ import annotations

import re
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
