"""The machine's parameters: tile shape, widths, buffer sizes, and derived values.

Names and defaults are those of VTA's configuration file (`vta_config.json`): all are logarithms to
the base 2, widths in bits, sizes in bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cached_property

from tilewright.base.numbers import whole
from tilewright.targets.vta.errors import VTAError


class Memory(IntEnum):
    """The memories by the number that an instruction names them with."""

    UOP = 0
    WGT = 1
    INP = 2
    ACC = 3
    OUT = 4
    ACC_8BIT = 5


@dataclass(frozen=True, slots=True)
class Space:
    """One memory. Addresses are in elements.

    depth: how many elements there are on the chip. dram_bytes: of an element in DRAM.
    sram_bytes: of an element on the chip (what the profiling counters count).
    """

    depth: int
    dram_bytes: int
    sram_bytes: int


# What the arithmetic units compute in: bytes times bytes, summed in 32 bits.
_FIXED = {"LOG_INP_WIDTH": 3, "LOG_WGT_WIDTH": 3, "LOG_ACC_WIDTH": 5}
_UOP_BYTES = 4
# sram_base has 16 bits; sums of 2^10 products of bytes are exact in float32; 64 MiB for a buffer.
_INDEX_BITS, _LOG_BLOCK, _LOG_SIZE = 16, 10, 26


@dataclass(frozen=True)
class VTAConfig:
    """VTA's configuration; raises VTAError for one that no machine can have."""

    LOG_INP_WIDTH: int = 3
    LOG_WGT_WIDTH: int = 3
    LOG_ACC_WIDTH: int = 5
    LOG_BATCH: int = 0
    LOG_BLOCK: int = 4
    LOG_UOP_BUFF_SIZE: int = 15
    LOG_INP_BUFF_SIZE: int = 15
    LOG_WGT_BUFF_SIZE: int = 18
    LOG_ACC_BUFF_SIZE: int = 17

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            fixed = _FIXED.get(f.name, value)
            most = _LOG_SIZE if f.name.endswith("_SIZE") else _LOG_BLOCK
            number = whole(value, 0)
            if number is None or number > most or number != fixed:
                expected = (
                    fixed if f.name in _FIXED else f"a logarithm from 0 to {most}"
                )
                raise VTAError(
                    f"{f.name} is {value!r}, expected {expected}", where="VTAConfig"
                )
            object.__setattr__(self, f.name, number)
        depths = (
            self.LOG_UOP_DEPTH,
            self.LOG_INP_DEPTH,
            self.LOG_WGT_DEPTH,
            self.LOG_ACC_DEPTH,
        )
        if not 0 <= min(depths) <= max(depths) <= _INDEX_BITS:
            raise VTAError(
                f"buffers hold 2^{depths} micro-ops and tiles, expected 2^0 to 2^{_INDEX_BITS}",
                where="VTAConfig",
            )
        bits = sum(self.uop_widths)
        if bits != 32:
            raise VTAError(
                f"indices of {self.uop_widths} bits make micro-ops of {bits}, expected 32",
                where="VTAConfig",
                hint="the depths of ACC, INP and WGT follow of the sizes and the block",
            )

    @property
    def BATCH(self) -> int:
        """Rows of an input tile."""
        return 1 << self.LOG_BATCH

    @property
    def BLOCK(self) -> int:
        """Columns of an input tile (BLOCK_IN) and of an output tile (BLOCK_OUT)."""
        return 1 << self.LOG_BLOCK

    @property
    def LOG_UOP_DEPTH(self) -> int:
        """Micro-ops that fit on the chip."""
        return self.LOG_UOP_BUFF_SIZE - 2

    @property
    def LOG_INP_DEPTH(self) -> int:
        """Input tiles that fit on the chip."""
        return (
            self.LOG_INP_BUFF_SIZE
            - self.LOG_BATCH
            - self.LOG_BLOCK
            - self.LOG_INP_WIDTH
            + 3
        )

    @property
    def LOG_WGT_DEPTH(self) -> int:
        """Weight tiles that fit on the chip."""
        return self.LOG_WGT_BUFF_SIZE - 2 * self.LOG_BLOCK - self.LOG_WGT_WIDTH + 3

    @property
    def LOG_ACC_DEPTH(self) -> int:
        """Accumulator tiles that fit on the chip."""
        return (
            self.LOG_ACC_BUFF_SIZE
            - self.LOG_BATCH
            - self.LOG_BLOCK
            - self.LOG_ACC_WIDTH
            + 3
        )

    @property
    def uop_widths(self) -> tuple[int, int, int]:
        """Bits of a micro-op's indices: dst, src, wgt."""
        return (
            self.LOG_ACC_DEPTH,
            max(self.LOG_ACC_DEPTH, self.LOG_INP_DEPTH),
            self.LOG_WGT_DEPTH,
        )

    @cached_property
    def spaces(self) -> dict[Memory, Space]:
        """The memories of this machine; OUT and ACC_8BIT are other views of ACC."""
        tile = self.BATCH * self.BLOCK
        weights = self.BLOCK * self.BLOCK
        acc = 1 << self.LOG_ACC_DEPTH
        return {
            Memory.UOP: Space(1 << self.LOG_UOP_DEPTH, _UOP_BYTES, _UOP_BYTES),
            Memory.WGT: Space(1 << self.LOG_WGT_DEPTH, weights, weights),
            Memory.INP: Space(1 << self.LOG_INP_DEPTH, tile, tile),
            Memory.ACC: Space(acc, 4 * tile, 4 * tile),
            Memory.OUT: Space(acc, tile, tile),
            Memory.ACC_8BIT: Space(acc, tile, 4 * tile),
        }
