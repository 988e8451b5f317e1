"""The shared memory of a block: where its buffers are, and the bytes that it takes in all.

Behind the buffers, each at its alignment, is a ring of "mbarriers", which count the bytes of boxes
that arrive: one for each group of boxes that may be in flight.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tilewright.loops.launch import Launch
from tilewright.loops.passes.bulk_copies import groups_at_once
from tilewright.loops.passes.shared_room import Places, apart, end_of

MBARRIER: Final = 8  # bytes


class BlockMemory(NamedTuple):
    """places: the byte at which each buffer begins. ring: how many mbarriers are behind these."""

    places: Places
    ring: int

    @staticmethod
    def of(launch: Launch) -> BlockMemory:
        """That of a launch's blocks. Raises ScheduleError (TW-LAUNCH) if groups of boxes have no
        limit."""
        places = launch.places or apart(launch.shared, launch.body)
        return BlockMemory(places, groups_at_once(launch.body))

    @property
    def ring_place(self) -> int:
        """The byte at which the ring begins."""
        return end_of(self.places)

    @property
    def nbytes(self) -> int:
        """Bytes in all, including those between buffers."""
        return self.ring_place + ring_bytes(self.ring)


def ring_bytes(count: int) -> int:
    """Bytes of so many mbarriers."""
    return count * MBARRIER
