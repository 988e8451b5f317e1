"""Micro-kernels: the work of one GEMM or ALU instruction, and the splitting of deeper nests.

An instruction has two its own loops; all further loops of a nest become micro-ops.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import combinations
from math import prod
from typing import Any

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.targets.vta.config import MemoryId, VTAConfig
from tilewright.targets.vta.errors import VTAError
from tilewright.targets.vta.fields import DEFAULT, AluOp, Opcode, layout
from tilewright.targets.vta.isa import Alu, Gemm, Micro
from tilewright.targets.vta.uops import pack_uops

# A micro-op's accumulator must differ from those of the two before it: their sums are in flight.
HAZARD = 2
_SIDES = ("dst", "src", "wgt")
Indices = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class IndexLoop:
    """A loop, and what each turn adds to the indices."""

    extent: int
    dst: int = 0
    src: int = 0
    wgt: int = 0


@dataclass(frozen=True, slots=True)
class VtaOperation:
    """What a step does: a product (the default), zero, or a lane operation.

    imm: the second operand; None reads it from acc[src].
    """

    reset: bool = False
    alu: AluOp | None = None
    imm: int | None = None

    @property
    def opcode(self) -> Opcode:
        """The instruction that does it."""
        if self.alu is None:
            return Opcode.GEMM
        return Opcode.ALU


GEMM, RESET = VtaOperation(), VtaOperation(reset=True)


@dataclass(frozen=True)
class VtaKernel:
    """Up to two loops (outer first) around micro-ops, each (dst, src, wgt).

    Raises VTAError for more loops, and if a micro-op sums into an accumulator of the two before.
    """

    operation: VtaOperation
    uops: tuple[Indices, ...]
    loops: tuple[IndexLoop, ...] = ()
    config: VTAConfig = field(default=DEFAULT, repr=False)

    def __post_init__(self) -> None:
        if len(self.loops) > 2:
            raise VTAError(
                f"{len(self.loops)} loops, and an instruction has two", where="kernel"
            )
        at = hazard(self.uops)
        if self.operation == GEMM and at is not None:
            raise VTAError(
                f"micro-op {at} sums into accumulator {self.uops[at][0]} as one of the two before",
                where="kernel",
                hint="let the innermost loop be one of several accumulators",
            )

    @cached_property
    def words(self) -> bytes:
        """The micro-ops as they are in DRAM. Raises VTAError for an index beyond its bits."""
        dst, src, wgt = np.array(self.uops, np.int64).reshape(-1, 3).T
        return pack_uops(dst, src, wgt, self.config).tobytes()

    def instruction(self, uop_bgn: int) -> Micro:
        """The instruction, for micro-ops that begin at `uop_bgn` on the chip."""
        loops = (IndexLoop(1),) * (2 - len(self.loops)) + self.loops
        factors: dict[str, Any] = {
            f"{side}_factor_{name}": getattr(loop, side)
            for name, loop in zip(("out", "in"), loops)
            for side in _SIDES
        }
        factors |= {"iter_out": loops[0].extent, "iter_in": loops[1].extent}
        factors |= {"uop_bgn": uop_bgn, "uop_end": uop_bgn + len(self.uops)}
        o = self.operation
        if o.alu is None:
            return Gemm(**factors, reset_reg=o.reset)
        del factors["wgt_factor_out"], factors["wgt_factor_in"]
        return Alu(
            **factors, alu_opcode=o.alu, use_imm=o.imm is not None, imm=o.imm or 0
        )


def hazard(uops: Sequence[Indices]) -> int | None:
    """The first micro-op whose dst equals that of one of the two before it."""
    for at, (dst, _, _) in enumerate(uops):
        if any(dst == before[0] for before in uops[max(0, at - HAZARD) : at]):
            return at
    return None


def kernels(
    operation: VtaOperation,
    loops: Sequence[IndexLoop],
    first: Indices = (0, 0, 0),
    config: VTAConfig = DEFAULT,
) -> list[VtaKernel]:
    """A nest of any depth as kernels, usually one, with as few micro-ops as possible.

    The steps may come in another order, which sums do not see; lane operations that read what
    others write must not be given as one nest. first: the indices where all loops are at 0.
    Raises VTAError if an index or an extent does not fit its bits.
    """
    nest = tuple(loop for loop in loops if loop.extent != 1)
    if any(loop.extent < 1 for loop in nest):
        return []
    for chosen in _choices(nest, operation, config):
        rest = [loop for at, loop in enumerate(nest) if at not in chosen]
        uops = _unrolled(rest, first)
        if operation != GEMM or hazard(uops) is None:
            return [
                VtaKernel(operation, uops, tuple(nest[at] for at in chosen), config)
            ]
    # No choice leaves micro-ops that can follow one another: the shortest loop becomes kernels.
    cut = min(range(len(nest)), key=lambda at: nest[at].extent)
    rest = [loop for at, loop in enumerate(nest) if at != cut]
    return [
        kernel
        for start in _unrolled([nest[cut]], first)
        for kernel in kernels(operation, rest, start, config)
    ]


def _choices(
    nest: Sequence[IndexLoop], operation: VtaOperation, config: VTAConfig
) -> Iterator[tuple[int, ...]]:
    """Which loops can be the instruction's own, those that leave the fewest micro-ops first."""
    limits = {f.name: 1 << f.width for f in layout(config)[operation.opcode]}
    able = [at for at, loop in enumerate(nest) if _fits(loop, limits)]
    pairs = [c for count in range(3) for c in combinations(able, count)]
    turns = prod(loop.extent for loop in nest)
    left = {c: turns // prod(nest[at].extent for at in c) for c in pairs}
    room = config.spaces[MemoryId.UOP].depth
    return iter(sorted((c for c in pairs if left[c] <= room), key=lambda c: left[c]))


def _fits(loop: IndexLoop, limits: Mapping[str, int]) -> bool:
    factors = (
        0 <= getattr(loop, s) < limits.get(f"{s}_factor_in", loop.wgt + 1)
        for s in _SIDES
    )
    return loop.extent < limits["iter_in"] and all(factors)


def _unrolled(loops: Sequence[IndexLoop], first: Indices) -> tuple[Indices, ...]:
    """The indices of all turns; loops over accumulators innermost, so that sums keep apart."""
    found = [first]
    for loop in sorted(loops, key=lambda loop: loop.dst != 0):
        found = [
            (d + n * loop.dst, s + n * loop.src, w + n * loop.wgt)
            for d, s, w in found
            for n in range(loop.extent)
        ]
    return tuple(found)
