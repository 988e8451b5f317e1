"""Where micro-ops are: each kernel's once in DRAM, and on the chip as long as there is room."""

from __future__ import annotations

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.targets.vta.config import MemoryId
from tilewright.targets.vta.dram import Dram
from tilewright.targets.vta.errors import VTAError
from tilewright.targets.vta.isa import Load
from tilewright.targets.vta.kernel import VtaKernel


@dataclass(frozen=True, slots=True)
class UopResidence:
    """Where a kernel's micro-ops begin on the chip; the load that brings them, if it is needed."""

    begin: int
    load: Load | None


class UopCache:
    """Kernels are put on the chip one after another; at its end the first are overwritten."""

    def __init__(self, dram: Dram) -> None:
        self._dram = dram
        self._depth = dram.config.spaces[MemoryId.UOP].depth
        self._sent: dict[bytes, int] = {}  # micro-ops -> their element in DRAM
        self._begins: dict[bytes, int] = {}  # micro-ops -> where they begin on the chip
        self._end = 0

    def forget_chip(self) -> None:
        """The chip's memories do not outlive a launch; DRAM does."""
        self._begins.clear()
        self._end = 0

    def place(self, kernel: VtaKernel) -> UopResidence:
        """Find or make room for a kernel. Raises VTAError for one that is larger than the chip."""
        words = kernel.words
        count = len(kernel.uops)
        if words in self._begins:
            return UopResidence(self._begins[words], None)
        if count > self._depth:
            raise VTAError(f"{count} micro-ops, and {self._depth} fit", where="kernel")
        if self._end + count <= self._depth:
            begin = self._end
        else:
            begin = 0
        self._end = begin + count
        self._drop(begin, self._end)
        self._begins[words] = begin
        return UopResidence(
            begin,
            Load(
                memory_type=MemoryId.UOP,
                sram_base=begin,
                dram_base=self._address(words),
                y_size=1,
                x_size=count,
                x_stride=count,
            ),
        )

    def _drop(self, begin: int, end: int) -> None:
        size = self._dram.config.spaces[MemoryId.UOP].dram_bytes
        for words, other in list(self._begins.items()):
            if other < end and begin < other + len(words) // size:
                del self._begins[words]

    def _address(self, words: bytes) -> int:
        if words not in self._sent:
            buffer = self._dram.upload(np.frombuffer(words, np.uint8))
            self._sent[words] = buffer.element(MemoryId.UOP)
        return self._sent[words]
