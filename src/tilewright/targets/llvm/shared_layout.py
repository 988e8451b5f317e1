"""Where the buffers of a block are in its shared memory."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.base.dataclass import dataclass
from tilewright.expr.nodes import Buffer
from tilewright.loops.launch import Launch
from tilewright.loops.passes.block_memory import BlockMemory
from tilewright.loops.passes.shared_room import ALIGNMENT, alignments


@dataclass(frozen=True, slots=True)
class SharedMemoryLayout:
    """A block's shared memory in code. symbol: its name.

    is_dynamic: the launch, not the code, sets its size. alignment: of its start, in bytes.
    """

    symbol: str
    memory: BlockMemory
    is_dynamic: bool
    alignment: int

    @staticmethod
    def of(launch: Launch, symbol: str, static: int) -> SharedMemoryLayout:
        """The layout of a launch. static: the most bytes with a size in the code."""
        needs = alignments(launch.shared, launch.body)
        most = max(needs.values(), default=ALIGNMENT)
        memory = BlockMemory.of(launch)
        return SharedMemoryLayout(symbol, memory, memory.nbytes > static, most)

    @property
    def offsets(self) -> Mapping[Buffer, int]:
        """The byte at which each buffer begins."""
        return self.memory.places

    @property
    def nbytes(self) -> int:
        """Bytes in all."""
        return self.memory.nbytes

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
