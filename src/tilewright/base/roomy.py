"""Functions whose frame leaves room in Python's stack for the calls below.

CPython keeps the frames of Python functions in pieces of 16 KiB. It asks the system for the next
piece when one is full, and gives it back when the first call in it returns: a loop that calls
functions just there does so at each iteration. How much that costs depends on how deep the caller
is: 2 to 30% of the page faults of a compilation, and up to 6% of its processor time.

A piece has a power of two of bytes and holds whole frames. One frame that asks for half a MiB gets
a MiB, of which the system provides the pages that are used. 3.11 to 3.13 are alike in this; where
another version is not, a large frame is only address space.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, Final, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
# Words of 8 bytes: a little over half a MiB, so that nearly as much is left.
SLOTS: Final = (1 << 16) + 1024


def roomy(function: F) -> F:
    """The function itself; its calls have half a MiB for frames: the depth of some 2,000 calls.

    For the entry of long work, in each thread and process. Not for generators, whose frames live
    elsewhere, nor for functions that call themselves.
    """
    changed = cast(FunctionType, function)
    changed.__code__ = changed.__code__.replace(co_stacksize=SLOTS)
    return function
