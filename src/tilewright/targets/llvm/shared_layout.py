"""Where the buffers of a block are in its shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.expr.nodes import Buffer
from tilewright.loops.launch import Launch
from tilewright.loops.passes.bulk_copies import groups_at_once
from tilewright.loops.passes.shared_room import ALIGNMENT, alignments, apart, end_of

MBARRIER: Final = 8  # bytes


@dataclass(frozen=True, slots=True)
class SharedMemoryLayout:
    """The layout of a block's shared memory: its symbol, each buffer's offset, and the total bytes.

    is_dynamic: the launch, not the code, sets its size. alignment: of its start, in bytes. ring:
    how many groups of boxes are counted (`emit_boxes.py`), behind all buffers.
    """

    symbol: str
    offsets: Mapping[Buffer, int]
    nbytes: int
    is_dynamic: bool
    alignment: int
    ring: int = 0

    @staticmethod
    def of(launch: Launch, symbol: str, static: int) -> SharedMemoryLayout:
        """The layout of a launch. static: the most bytes with a size in the code."""
        needs = alignments(launch.shared, launch.body)
        offsets = launch.places or apart(launch.shared, launch.body)
        most = max(needs.values(), default=ALIGNMENT)
        ring = groups_at_once(launch.body)
        nbytes = end_of(offsets) + ring * MBARRIER
        is_dynamic = nbytes > static
        return SharedMemoryLayout(symbol, offsets, nbytes, is_dynamic, most, ring)

    @property
    def ring_offset(self) -> int:
        """Where the ring begins."""
        return self.nbytes - self.ring * MBARRIER

    @property
    def text(self) -> str:
        """The definition of the symbol."""
        if not self.nbytes:
            return ""
        if self.is_dynamic:
            kind, array = "external", "[0 x i8]"
        else:
            kind, array = "internal", f"[{self.nbytes} x i8] undef"
        start = f"@{self.symbol} = {kind} addrspace(3) global"
        return f"{start} {array}, align {self.alignment}\n"
