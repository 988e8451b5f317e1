"""Checking the memory of a plan: no buffer is overwritten while it is in use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import VerifyError
from tilewright.expr.nodes import Buffer
from tilewright.plan.nodes import HOST, FusionGroup, MemoryPlan, Plan, Step


@dataclass(frozen=True, eq=False, slots=True)
class StepAccess:
    """What one step reads and writes, in whole or in part.

    over: its operands that its result may overwrite (`overwritable`).
    """

    name: str
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]
    over: tuple[Buffer, ...] = ()


def verify_arena(plan: Plan) -> None:
    """Raise VerifyError for a broken rule of `verify_memory`, on any device; a plan without places
    passes."""
    memory = plan.memory
    if memory is None:
        return
    for device, total in {HOST: memory.total, **memory.elsewhere}.items():
        accesses = [_access(plan, memory, step, device) for step in plan.steps]
        mine = {b: n for b, n in memory.places.items() if plan.device_of(b) == device}
        verify_memory(accesses, mine, total)


def _access(plan: Plan, memory: MemoryPlan, step: Step, device: str) -> StepAccess:
    """A step's accesses to the memory of a device."""
    over: tuple[Buffer, ...] = ()
    if isinstance(step, FusionGroup):
        over = memory.over.get(step, ())
    writes = plan.touched(step)[len(step.reads) :]
    return StepAccess(
        step.name,
        reads=tuple(b for b in step.reads if plan.device_of(b) == device),
        writes=tuple(b for b in writes if plan.device_of(b) == device),
        over=over,
    )


def verify_memory(
    steps: Iterable[StepAccess],
    places: Mapping[Buffer, int],
    total: int,
    at_end: Sequence[Buffer] = (),
) -> None:
    """Raise VerifyError if a buffer is used after its memory was overwritten.

    places: byte offsets in an arena of `total` bytes; buffers without one have separate memory.
    at_end: buffers that are read after the last step. P(b) are the bytes of b; each byte belongs to
    the buffer last written there:

        TW-MEMORY-OUTSIDE   P(b) leaves the arena
        TW-MEMORY-LOST      a step reads b, or writes more of it, and part of P(b) is another's
        TW-MEMORY-SHARED    a step writes b, and P(b) overlaps P(r) of another r that it uses, which
                            is allowed only if r is in `over` and starts where b does
    """
    arena = _Arena(places, np.full(total, -1, np.int32))
    for step in steps:
        for b in step.reads:
            arena.check(b, step.name)
        for b in step.writes:
            for r in (*step.reads, *step.writes):
                if arena.overlap(b, r) and not (
                    r in step.over and places[r] == places[b]
                ):
                    message = f"writes {b!r} over {r!r}, which it uses"
                    raise VerifyError(message, code="TW-MEMORY-SHARED", where=step.name)
            arena.take(b, step.name)
    for b in at_end:
        arena.check(b, "the end")


@dataclass(slots=True)
class _Arena:
    """Which buffer each byte belongs to, by number."""

    places: Mapping[Buffer, int]
    owners: np.ndarray[Any, np.dtype[np.int32]]
    numbers: dict[Buffer, int] = field(default_factory=dict)

    def span(self, b: Buffer) -> slice:
        start = self.places[b]
        return slice(start, start + b.size * b.dtype.itemsize)

    def overlap(self, a: Buffer, b: Buffer) -> bool:
        """Whether two buffers have a byte in common."""
        if a is b:
            return False
        if a not in self.places:
            return False
        if b not in self.places:
            return False
        one = self.span(a)
        two = self.span(b)
        start = max(one.start, two.start)
        stop = min(one.stop, two.stop)
        return bool(start < stop)

    def check(self, b: Buffer, where: str) -> None:
        """Raise unless a buffer is completely written and intact; one without elements is."""
        if b not in self.places or not b.size:
            return
        if b not in self.numbers:
            raise VerifyError(
                f"reads {b!r}, never written", code="TW-MEMORY-LOST", where=where
            )
        if (self.owners[self.span(b)] != self.numbers[b]).any():
            message = f"uses {b!r}, part of which has been overwritten"
            raise VerifyError(message, code="TW-MEMORY-LOST", where=where)

    def take(self, b: Buffer, where: str) -> None:
        """Give all bytes to `b`."""
        if b not in self.places:
            return
        if b in self.numbers:
            self.check(b, where)
            return
        span = self.span(b)
        if span.start < 0 or span.stop > len(self.owners):
            message = (
                f"{b!r} at byte {span.start} leaves the arena of {len(self.owners)}"
            )
            raise VerifyError(message, code="TW-MEMORY-OUTSIDE", where=where)
        self.numbers[b] = len(self.numbers)
        self.owners[span] = self.numbers[b]
