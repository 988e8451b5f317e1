"""A cache of schedule steps, for searches that schedule one kernel in many ways.

Candidates of a search differ in a few parameters, so their schedules begin with the same steps, and
a step is a function of the kernel. Kernels are immutable: a repeated step returns the same object
as
before, so the next step is found in the cache as well.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from tilewright.loops.nodes import Kernel

T = TypeVar("T")
KEPT: Final = 1024  # steps; a kernel shares what a step leaves as it was


class StepCache:
    """The results of the last `kept` different steps. hits, misses: how many were found, or not."""

    def __init__(self, kept: int = KEPT) -> None:
        self.kept: Final = kept
        self.hits = self.misses = 0
        # By the identity of a kernel, which lives as long as its entry does.
        self._made: OrderedDict[tuple[int, str], tuple[Kernel, Any]] = OrderedDict()

    def made(self, kernel: Kernel, step: str, make: Callable[[], T]) -> T:
        """What a step makes of a kernel; an error that it raises is not kept."""
        key = id(kernel), step
        if key in self._made:
            self.hits += 1
            self._made.move_to_end(key)
            result: T = self._made[key][1]
            return result
        self.misses += 1
        result = make()
        self._made[key] = kernel, result
        if len(self._made) > self.kept:
            self._made.popitem(last=False)
        return result

    @contextmanager
    def used(self) -> Iterator[None]:
        """Schedules that are made inside take their steps from here."""
        token = _ACTIVE.set(self)
        try:
            yield
        finally:
            _ACTIVE.reset(token)


_ACTIVE: ContextVar[StepCache | None] = ContextVar("step_cache", default=None)


def active() -> StepCache | None:
    """The cache that is in use here."""
    return _ACTIVE.get()
