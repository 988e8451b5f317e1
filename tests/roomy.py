"""Calls in a large piece of Python's stack.

Python keeps the frames of its functions in pieces of 16 KiB. It asks the system for the next piece
when one is full, and gives it back when the first call in it returns: a loop that calls functions
just there does so at each iteration, which is a third of the tests' time in the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P, T = ParamSpec("P"), TypeVar("T")
SLOTS = (
    1 << 16
) + 1024  # of 8 bytes: pieces have sizes of powers of two, and half of it is left


def roomy(function: Callable[P, T]) -> Callable[P, T]:
    """The function, called from a frame that asks for half a MiB and so gets a MiB."""

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_stacksize=SLOTS)
    return call
