"""SIGKILL at many moments of what writes, in a child each: whatever it was writing is left so."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


def at_many_kills(
    of: tuple[Callable[..., Any], ...], action: Callable[[], object], step: int = 1
) -> Iterator[int]:
    """Fork a child that runs `action` and is killed before instruction n of `of`, for each n.

    `of` are functions; n counts the instructions of Python that run in them, by `step`. Yields n
    after each child, for the test to look at what is left; the last child ends undisturbed.
    """
    number = 1
    while True:
        child = os.fork()
        if not child:
            _run(of, action, number)
        ended = os.waitpid(child, 0)[1]
        yield number
        if not os.WIFSIGNALED(ended):
            assert os.waitstatus_to_exitcode(ended) == 0, "the child failed"
            return
        assert os.WTERMSIG(ended) == signal.SIGKILL
        number += step


def _run(
    of: tuple[Callable[..., Any], ...], action: Callable[[], object], number: int
) -> None:
    codes, seen, status = {f.__code__ for f in of}, 0, 1

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal seen
        if frame.f_code not in codes:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    try:
        sys.settrace(trace)
        action()
        status = 0
    finally:
        sys.settrace(None)
        os._exit(status)
