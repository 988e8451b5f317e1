"""The loop nest of a GEMM or ALU instruction as arrays of indices, one part at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.targets.vta.config import VTAConfig
from tilewright.targets.vta.errors import VTAError
from tilewright.targets.vta.isa import Alu, Gemm, Micro
from tilewright.targets.vta.sram import Sram
from tilewright.targets.vta.uops import Indices, unpack_uops

# Steps whose indices and products are held at a time: a few megabytes.
CHUNK = 1 << 14


@dataclass(frozen=True, slots=True)
class StepIndex:
    """One index of the steps: `first[u] + i * factor_out + j * factor_in`."""

    memory: str
    first: Indices
    factor_out: int
    factor_in: int

    def at(self, outer: Indices, inner: Indices) -> Indices:
        """The index in the steps of these loop counters, in the order of execution."""
        moved = outer * self.factor_out + inner * self.factor_in
        return (moved[:, None] + self.first).reshape(-1)

    def last(self, i: Micro) -> int:
        """The greatest value that it takes."""
        moved = (i.iter_out - 1) * self.factor_out + (i.iter_in - 1) * self.factor_in
        return int(self.first.max()) + moved


def indices(i: Micro, sram: Sram, config: VTAConfig) -> tuple[StepIndex, ...]:
    """The indices that an instruction uses: dst, and src and wgt as far as they are read.

    Raises VTAError if one leaves its memory. The instruction has steps.
    """
    if i.uop_end > len(sram.uop):
        raise VTAError(f"micro-op {i.uop_end - 1} is read of {len(sram.uop)}")
    dst, src, wgt = unpack_uops(sram.uop[i.uop_bgn : i.uop_end], config)
    used = [
        StepIndex(
            memory="acc",
            first=dst,
            factor_out=i.dst_factor_out,
            factor_in=i.dst_factor_in,
        )
    ]
    if isinstance(i, Gemm) and not i.reset_reg:
        used.append(
            StepIndex(
                memory="inp",
                first=src,
                factor_out=i.src_factor_out,
                factor_in=i.src_factor_in,
            )
        )
        used.append(
            StepIndex(
                memory="wgt",
                first=wgt,
                factor_out=i.wgt_factor_out,
                factor_in=i.wgt_factor_in,
            )
        )
    if isinstance(i, Alu) and not i.use_imm:
        used.append(
            StepIndex(
                memory="acc",
                first=src,
                factor_out=i.src_factor_out,
                factor_in=i.src_factor_in,
            )
        )
    for index in used:
        depth = len(getattr(sram, index.memory))
        if index.last(i) >= depth:
            name = index.memory.upper()
            raise VTAError(
                f"element {index.last(i)} of {name} is accessed, which has {depth}"
            )
    return tuple(used)


def steps(i: Micro, used: tuple[StepIndex, ...]) -> Iterator[tuple[Indices, ...]]:
    """The indices of all steps in the order of execution, in parts of about CHUNK steps."""
    points = i.iter_out * i.iter_in
    part = max(1, CHUNK // i.uops)
    for start in range(0, points, part):
        outer, inner = np.divmod(np.arange(start, min(start + part, points)), i.iter_in)
        yield tuple(index.at(outer, inner) for index in used)


def alike(index: Indices) -> Iterator[Indices]:
    """Positions of equal values: an array [values, occurrences] for each number of occurrences."""
    order = np.argsort(
        index.astype(np.uint16), kind="stable"
    )  # a radix sort for 16 bits
    ordered = index[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    counts = np.diff(starts, append=len(index))
    for count in np.flatnonzero(np.bincount(counts)):
        yield order[starts[counts == count][:, None] + np.arange(count)]
