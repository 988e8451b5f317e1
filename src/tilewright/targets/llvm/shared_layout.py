"""Where the buffers of a block are in its shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.expr.nodes import Buffer
from tilewright.loops.launch import Launch
from tilewright.loops.passes.bulk_copies import groups_at_once
from tilewright.loops.passes.warp_units import warp_units

MBARRIER: Final = 8  # bytes
ALIGNMENT: Final = 16  # bytes: of every parameter, and of what a block shares


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
        """Lay out buffers one after another. static: the most bytes with a size in the code."""
        needs = _alignments(launch)
        offsets, at = {}, 0
        for buffer in launch.shared:
            at = -(-at // needs[buffer]) * needs[buffer]
            offsets[buffer] = at
            at += -(-buffer.size * buffer.dtype.itemsize // ALIGNMENT) * ALIGNMENT
        most = max(needs.values(), default=ALIGNMENT)
        ring = groups_at_once(launch.body)
        at += ring * MBARRIER
        return SharedMemoryLayout(symbol, offsets, at, at > static, most, ring)

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


def _alignments(launch: Launch) -> dict[Buffer, int]:
    """What the start of each buffer of a block is a multiple of, in bytes."""
    found = dict.fromkeys(launch.shared, ALIGNMENT)
    for unit in warp_units(launch.body):
        assert unit.intrinsic is not None
        of = unit.intrinsic.intrinsic
        for tensor, o in zip(of.tensors, unit.operands[-len(of.tensors) :]):
            if o.buffer in found:
                need = of.alignment.get(tensor.name, 1)
                found[o.buffer] = max(found[o.buffer], need)
    return found
