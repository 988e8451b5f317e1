"""A KeyboardInterrupt at each moment of a function in turn: whatever it holds must be let go."""

from __future__ import annotations

import dis
import signal
import sys
from collections.abc import Callable, Collection, Iterator
from itertools import pairwise
from types import FrameType
from typing import Any, Final

# After these Python looks whether a signal has come.
LOOKS: Final = {"RESUME", "CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD"}


def at_every_moment(
    of: Callable[..., Any], action: Callable[[], object], step: int = 1
) -> Iterator[int]:
    """Run `action` again and again, interrupted at moment n within `of`; n counts by `step`.

    Yields n after each run, for the test to look at what is left; the last run is undisturbed. A
    moment is one at which Python looks for signals, and SIGINT is not blocked.
    """
    code = list(dis.get_instructions(of))
    moments = {after.offset for b, after in pairwise(code) if b.opname in LOOKS}
    moments |= {b.argval for b in code if b.opname == "JUMP_BACKWARD"}
    number = 1 - step
    came = True
    while came:
        number += step
        came = _interrupted(of, action, number, moments)
        yield number


def _interrupted(
    of: Callable[..., Any],
    action: Callable[[], object],
    number: int,
    moments: Collection[int],
) -> bool:
    """Whether the action came as far as that moment."""
    seen = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal seen
        if frame.f_code is not of.__code__:
            return None
        frame.f_trace_opcodes = True
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        if (
            event == "opcode"
            and frame.f_lasti in moments
            and signal.SIGINT not in blocked
        ):
            seen += 1
            if seen == number:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
