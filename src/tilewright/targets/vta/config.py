"""The machine's parameters: tile shape, widths, buffer sizes, and derived values.

Names and defaults follow VTA's configuration file (`vta_config.json`): all are base-2 logarithms,
widths in bits, sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from enum import IntEnum
from functools import cached_property
from math import prod

from tilewright.base.dataclass import dataclass
from tilewright.base.numbers import whole
from tilewright.targets.vta.errors import VTAError


class MemoryId(IntEnum):
    """The memories by the number that an instruction names them with."""

    UOP = 0
    WGT = 1
    INP = 2
    ACC = 3
    OUT = 4
    ACC_8BIT = 5


@dataclass(frozen=True, slots=True)
class MemorySpace:
    """One memory. Addresses are in elements.

    shape: the numbers of an element. bits, sram_bits: the width of each in DRAM and on the chip.
    depth: how many elements there are on the chip.
    """

    shape: tuple[int, ...]
    bits: int
    sram_bits: int
    depth: int

    @property
    def lanes(self) -> int:
        """How many numbers an element has."""
        return prod(self.shape)

    @property
    def dram_bytes(self) -> int:
        """Bytes of an element in DRAM."""
        return self.lanes * self.bits // 8

    @property
    def sram_bytes(self) -> int:
        """Bytes of an element on the chip: what the counters count."""
        return self.lanes * self.sram_bits // 8


_UOP_BITS, _ACC_BITS = 32, 32
# The logarithms that a parameter may have. Operands are of 2, 4 or 8 bits, summed in 32; sums of
# 2^10 products of bytes are exact in float32, and a buffer has 64 MiB at most.
_OPERAND_WIDTHS, _ACC_WIDTHS = range(1, 4), range(5, 6)
_BATCHES, _BLOCKS, _SIZES = range(11), range(1, 11), range(27)
# Logarithms of depths. sram_base has 16 bits. Half an instruction is a word of 64: GEMM's first has
# two micro-op indices next to two counters, ALU's second four accumulator indices and a constant.
_DEPTHS: Mapping[str, range] = {
    "UOP": range(14),
    "INP": range(17),
    "WGT": range(17),
    "ACC": range(12),
}


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
            number = whole(value, 0)
            able = _logarithms(f.name)
            if number is None or number not in able:
                expected = f"a logarithm from {able[0]} to {able[-1]}"
                raise VTAError(
                    f"{f.name} is {value!r}, expected {expected}", where="VTAConfig"
                )
            object.__setattr__(self, f.name, number)
        for name, able in _DEPTHS.items():
            log = getattr(self, f"LOG_{name}_DEPTH")
            if log not in able:
                raise VTAError(
                    f"the {name} buffer holds 2^{log} elements, expected 2^{able[0]} to "
                    f"2^{able[-1]}",
                    where="VTAConfig",
                    hint=f"choose another LOG_{name}_BUFF_SIZE",
                )
        bits = sum(self.uop_widths)
        if bits > _UOP_BITS:
            raise VTAError(
                f"indices of {self.uop_widths} bits make micro-ops of {bits}, expected at most "
                f"{_UOP_BITS}",
                where="VTAConfig",
                hint="make a buffer smaller: the depths of ACC, INP and WGT follow from the "
                "sizes and the block",
            )
        self._check_elements()

    def _check_elements(self) -> None:
        """DRAM is addressed in bytes."""
        for memory, space in self.spaces.items():
            bits = space.lanes * space.bits
            if bits % 8:
                raise VTAError(
                    f"an element of {memory.name} has {bits} bits, expected whole bytes",
                    where="VTAConfig",
                    hint="make LOG_BLOCK, LOG_BATCH or the width larger",
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
    def tile(self) -> tuple[int, ...]:
        """The shape of a tile of data or accumulators; one of a single row is a vector."""
        if self.BATCH > 1:
            return (self.BATCH, self.BLOCK)
        return (self.BLOCK,)

    @property
    def operand_bits(self) -> tuple[int, int]:
        """Bit widths of data (and stored results), and of weights."""
        return 1 << self.LOG_INP_WIDTH, 1 << self.LOG_WGT_WIDTH

    @property
    def loads_bytes(self) -> bool:
        """Whether 8-bit values can be loaded to accumulators (ACC_8BIT): if the data has 8 bits."""
        return self.operand_bits[0] == 8

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
    def spaces(self) -> dict[MemoryId, MemorySpace]:
        """The memories of this machine; OUT and ACC_8BIT are other views of ACC."""
        data, weights = self.operand_bits
        square = (self.BLOCK, self.BLOCK)
        acc = 1 << self.LOG_ACC_DEPTH
        return {
            MemoryId.UOP: MemorySpace(
                shape=(),
                bits=_UOP_BITS,
                sram_bits=_UOP_BITS,
                depth=1 << self.LOG_UOP_DEPTH,
            ),
            MemoryId.WGT: MemorySpace(
                shape=square,
                bits=weights,
                sram_bits=weights,
                depth=1 << self.LOG_WGT_DEPTH,
            ),
            MemoryId.INP: MemorySpace(
                shape=self.tile,
                bits=data,
                sram_bits=data,
                depth=1 << self.LOG_INP_DEPTH,
            ),
            MemoryId.ACC: MemorySpace(
                shape=self.tile,
                bits=_ACC_BITS,
                sram_bits=_ACC_BITS,
                depth=acc,
            ),
            MemoryId.OUT: MemorySpace(
                shape=self.tile,
                bits=data,
                sram_bits=data,
                depth=acc,
            ),
            MemoryId.ACC_8BIT: MemorySpace(
                shape=self.tile,
                bits=8,
                sram_bits=_ACC_BITS,
                depth=acc,
            ),
        }


def _logarithms(name: str) -> range:
    """What a parameter may be."""
    if name == "LOG_ACC_WIDTH":
        return _ACC_WIDTHS
    if name.endswith("_WIDTH"):
        return _OPERAND_WIDTHS
    if name.endswith("_SIZE"):
        return _SIZES
    return _BLOCKS if name == "LOG_BLOCK" else _BATCHES
