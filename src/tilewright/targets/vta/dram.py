"""DRAM as the accelerator sees it: an image of pages, and buffers in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tilewright.base.dataclass import dataclass
from tilewright.targets.vta.config import MemoryId, VTAConfig
from tilewright.targets.vta.errors import VTAError
from tilewright.targets.vta.fields import DEFAULT
from tilewright.targets.vta.packing import byte_count, from_bytes, to_bytes

PAGE = 4096
# Physical addresses have 32 bits; an image of that size is refused long before.
LIMIT = 1 << 30


@dataclass(frozen=True, slots=True, eq=False)
class DramBuffer:
    """A part of a DRAM, which starts at a page; `pages` is the size of the block it is in."""

    dram: Dram
    address: int
    nbytes: int
    pages: int

    def write(self, array: NDArray[Any]) -> None:
        """Copy an array's bytes to the buffer's start. Raises VTAError if it does not fit."""
        data = to_bytes(array)
        self._check(len(data))
        self.dram.image[self.address : self.address + len(data)] = data

    def read(self, shape: Sequence[int], dtype: DTypeLike) -> NDArray[Any]:
        """A copy of the buffer's start as an array. Raises VTAError for more than there is."""
        count = int(np.prod(shape))
        size = byte_count(count, dtype)
        self._check(size)
        data = bytes(self.dram.image[self.address : self.address + size])
        return from_bytes(data, count, dtype).reshape(shape)

    def element(self, memory: MemoryId, first: int = 0, last: int | None = None) -> int:
        """The address of the buffer's element `first`, in elements of a memory.

        Raises VTAError if that or `last` is not one of the buffer's elements.
        """
        size = self.dram.config.spaces[memory].dram_bytes
        end = first if last is None else last
        if not 0 <= first <= end or (end + 1) * size > self.nbytes:
            count = self.nbytes // size
            name = memory.name
            raise VTAError(
                f"elements {first} to {end} of {name}, in a buffer of {count}"
            )
        return self.address // size + first

    def _check(self, size: int) -> None:
        if size > self.nbytes:
            raise VTAError(
                f"{size} bytes, in a buffer of {self.nbytes}", where="buffer"
            )


class Dram:
    """An image that grows with its allocations. Freed blocks are reused, the smallest first.

    The first page stays free, so that no buffer has the address 0.
    """

    def __init__(self, config: VTAConfig = DEFAULT, limit: int = LIMIT) -> None:
        self.config = config
        self.limit = limit
        self._page = max(PAGE, *(space.dram_bytes for space in config.spaces.values()))
        self.image = bytearray(self._page)
        self._free: list[tuple[int, int]] = []  # (size, address)

    def allocate(self, nbytes: int) -> DramBuffer:
        """A buffer of at least one byte; its contents are undefined.

        Raises VTAError if it does not fit.
        """
        if nbytes < 1:
            raise VTAError(f"a buffer of {nbytes} bytes", where="DRAM")
        size = -(-nbytes // self._page) * self._page
        for block in sorted(self._free):
            if block[0] >= size:
                self._free.remove(block)
                return DramBuffer(self, block[1], nbytes, block[0])
        address = len(self.image)
        if address + size > self.limit:
            raise VTAError(
                f"{nbytes} bytes do not fit: {address} of {self.limit} are in use",
                where="DRAM",
            )
        self.image.extend(bytes(size))
        return DramBuffer(self, address, nbytes, size)

    def upload(self, array: NDArray[Any]) -> DramBuffer:
        """A buffer with an array's bytes. Raises VTAError if it does not fit."""
        buffer = self.allocate(max(1, byte_count(array.size, array.dtype)))
        buffer.write(array)
        return buffer

    def free(self, buffer: DramBuffer) -> None:
        """Give a buffer back. Raises VTAError for one that is not a buffer of this DRAM or free."""
        block = buffer.pages, buffer.address
        if buffer.dram is not self or block in self._free:
            raise VTAError(
                f"the buffer at {buffer.address:#x} is not allocated", where="DRAM"
            )
        self._free.append(block)
