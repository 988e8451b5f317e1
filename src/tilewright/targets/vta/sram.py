"""The on-chip memories, and the rectangles transferred between them and DRAM."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tilewright.base.dataclass import dataclass
from tilewright.targets.vta.config import MemoryId, VTAConfig
from tilewright.targets.vta.errors import VTAError
from tilewright.targets.vta.isa import Load, Store, Transfer
from tilewright.targets.vta.packing import pack, unpack

Bytes = NDArray[np.uint8]
T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Sram:
    """The memories: micro-ops, weight tiles [in, out], input and accumulator tiles [batch, lane].

    The operands in `inp` and `wgt` are held as float32, which is exact for them and for the sums of
    a tile's products (at most BLOCK * 2^14, of 2^24). A weight tile is transposed as it is loaded,
    so that a product needs no copy.
    """

    uop: NDArray[np.uint32]
    wgt: NDArray[np.float32]
    inp: NDArray[np.float32]
    acc: NDArray[np.int32]

    @staticmethod
    def zeroed(config: VTAConfig) -> Sram:
        """The memories as they are when the machine is started."""
        depth = {m: space.depth for m, space in config.spaces.items()}
        batch = config.BATCH
        block = config.BLOCK
        return Sram(
            uop=np.zeros(depth[MemoryId.UOP], np.uint32),
            wgt=np.zeros((depth[MemoryId.WGT], block, block), np.float32),
            inp=np.zeros((depth[MemoryId.INP], batch, block), np.float32),
            acc=np.zeros((depth[MemoryId.ACC], batch, block), np.int32),
        )

    def of(self, memory: int) -> NDArray[Any]:
        """The array that a load of this memory writes."""
        by_number: dict[int, NDArray[Any]] = {
            MemoryId.UOP: self.uop,
            MemoryId.WGT: self.wgt,
            MemoryId.INP: self.inp,
            MemoryId.ACC: self.acc,
            MemoryId.ACC_8BIT: self.acc,
        }
        return by_number[memory]


# The numbers of 32 bits in DRAM; all others are signed and of at most 8.
_WORDS: dict[int, str] = {MemoryId.UOP: "<u4", MemoryId.ACC: "<i4"}


def dram_bytes(i: Transfer, config: VTAConfig) -> int:
    """The bytes that a transfer moves over the border of the chip."""
    return i.y_size * i.x_size * config.spaces[MemoryId(i.memory_type)].dram_bytes


def check_dram(i: Transfer, size: int, config: VTAConfig) -> None:
    """Raises VTAError if a transfer leaves a DRAM of `size` bytes."""
    if not i.x_size or not i.y_size:
        return
    element = config.spaces[MemoryId(i.memory_type)].dram_bytes
    last = i.dram_base + (i.y_size - 1) * i.x_stride + i.x_size - 1
    if (last + 1) * element > size:
        raise VTAError(
            f"bytes {last * element:#x} to {(last + 1) * element - 1:#x} of DRAM are accessed, "
            f"which has {size:#x}"
        )


def load(i: Load, sram: Sram, dram: Bytes, config: VTAConfig) -> None:
    """Execute a load; its ranges have been checked."""
    if not i.elements:
        return
    to = sram.of(i.memory_type)
    space = config.spaces[MemoryId(i.memory_type)]
    tile = to.shape[1:]
    rows = np.zeros((i.y_pad_0 + i.y_size + i.y_pad_1, i.row, *tile), to.dtype)
    if i.y_size:
        raw = _elements(dram, space.dram_bytes)[addresses(i)]
        word = _WORDS.get(i.memory_type)
        if word is None:
            numbers = unpack(raw, space.bits)
        else:
            numbers = raw.view(word)
        values = numbers.reshape(i.y_size, i.x_size, *tile)
        here = rows[i.y_pad_0 : i.y_pad_0 + i.y_size, i.x_pad_0 : i.x_pad_0 + i.x_size]
        here[...] = values.swapaxes(2, 3) if i.memory_type == MemoryId.WGT else values
    to[i.sram_base : i.sram_base + i.elements] = rows.reshape(i.elements, *tile)


def store(i: Store, sram: Sram, dram: Bytes, config: VTAConfig) -> None:
    """Execute a store; its ranges have been checked."""
    if not i.elements:
        return
    space = config.spaces[MemoryId.OUT]
    tiles = sram.acc[i.sram_base : i.sram_base + i.elements]
    lanes = tiles.reshape(i.y_size, i.x_size, space.lanes)
    rows = pack(lanes, space.bits)
    _elements(dram, space.dram_bytes)[addresses(i)] = (
        rows  # where rows overlap, the last one stays
    )


def _elements(dram: NDArray[T], size: int) -> NDArray[T]:
    """An array with an entry for each byte of DRAM as [elements of `size` bytes, size]."""
    whole = len(dram) // size
    return dram[: whole * size].reshape(whole, size)


def addresses(i: Transfer) -> NDArray[np.int64]:
    """The elements in DRAM that a transfer moves, [y_size, x_size]."""
    rows = i.dram_base + np.arange(i.y_size, dtype=np.int64) * i.x_stride
    return rows[:, None] + np.arange(i.x_size, dtype=np.int64)
