"""The checks of a strict run: results must not depend on the order of one simulator.

Every stage counts its instructions. A clock says, for each stage, up to which instruction all has
ended; a token carries the clock of the instruction that gave it (Lamport, Mattern). Two accesses
to an element, one of them a write, have an order if the clock of the later one covers the earlier.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.targets.vta.config import MemoryId, VTAConfig
from tilewright.targets.vta.errors import VTAError
from tilewright.targets.vta.fields import AluOp
from tilewright.targets.vta.isa import Alu, Finish, Gemm, Load, Micro, Transfer
from tilewright.targets.vta.nest import StepIndex, steps
from tilewright.targets.vta.program import InstructionStream
from tilewright.targets.vta.sram import Sram, addresses
from tilewright.targets.vta.stages import QUEUES, VtaModule

Clock = dict[VtaModule, int]
_READ, _WRITE = "reads", "writes"
_CHIP: dict[int, str] = {
    MemoryId.UOP: "uop",
    MemoryId.WGT: "wgt",
    MemoryId.INP: "inp",
    MemoryId.ACC: "acc",
    MemoryId.OUT: "acc",
    MemoryId.ACC_8BIT: "acc",
}
_DRAM = "dram"


class RunWatcher:
    """Observes a run. Every method raises VTAError for an illegal event."""

    def __init__(
        self, program: InstructionStream, config: VTAConfig, dram: int
    ) -> None:
        self.program = program
        self.config = config
        self.clocks: dict[VtaModule, Clock] = {
            s: dict.fromkeys(VtaModule, 0) for s in VtaModule
        }
        self.tokens: dict[str, deque[Clock]] = {q: deque() for q in QUEUES}
        self.executed: dict[VtaModule, list[int]] = {s: [] for s in VtaModule}
        spaces = config.spaces
        # DRAM is followed in pieces of the smallest element, which divides the others.
        self.piece = min(space.dram_bytes for space in spaces.values())
        sizes = {name: spaces[MemoryId(m)].depth for m, name in _CHIP.items()}
        sizes[_DRAM] = dram // self.piece
        # The number, in its stage, of the last instruction that accessed each element; 0: none.
        self.last = {
            (name, s, kind): np.zeros(size, np.int32)
            for name, size in sizes.items()
            for s in VtaModule
            for kind in (_READ, _WRITE)
        }
        self.stage = VtaModule.LOAD

    def begin(self, index: int) -> None:
        """An instruction starts, with the tokens that it takes."""
        self.index = index
        self.stage = self.program.stages[index]
        clock = self.clocks[self.stage]
        for queue in self.program.pops[index]:
            given = self.tokens[queue].popleft()
            for s in VtaModule:
                clock[s] = max(clock[s], given[s])
        self.executed[self.stage].append(index)
        clock[self.stage] = len(self.executed[self.stage])
        if isinstance(self.program.instructions[index], Finish):
            self._finish(clock)

    def end(self) -> None:
        """It has ended and pushes its tokens."""
        for queue in self.program.pushes[self.index]:
            self.tokens[queue].append(dict(self.clocks[self.stage]))

    def transfer(self, i: Transfer) -> None:
        """The elements that a load or store accesses; its ranges have been checked."""
        chip = np.arange(i.sram_base, i.sram_base + i.elements)
        size = self.config.spaces[MemoryId(i.memory_type)].dram_bytes
        loads = isinstance(i, Load)
        if i.y_size:
            pieces = size // self.piece
            places = addresses(i)[..., None] * pieces + np.arange(pieces)
            self._access(_DRAM, places.reshape(-1), _READ if loads else _WRITE)
        self._access(_CHIP[i.memory_type], chip, _WRITE if loads else _READ)

    def micro(self, i: Micro, used: tuple[StepIndex, ...], sram: Sram) -> None:
        """The elements that a GEMM or ALU instruction accesses; its indices have been checked."""
        if (
            isinstance(i, Alu)
            and i.alu_opcode == AluOp.SHR
            and i.use_imm
            and abs(i.imm) >= 32
        ):
            raise VTAError(f"a shift by {i.imm}, which is undefined beyond 31")
        self._access("uop", np.arange(i.uop_bgn, i.uop_end), _READ)
        touched = [np.zeros(len(getattr(sram, u.memory)), bool) for u in used]
        for part in steps(i, used):
            for seen, at in zip(touched, part):
                seen[at] = True
        places = [np.flatnonzero(seen) for seen in touched]
        if not (isinstance(i, Gemm) and i.reset_reg):
            for u, at in zip(used, places):
                self._access(u.memory, at, _READ)
        self._access("acc", places[0], _WRITE)

    def _access(self, memory: str, at: NDArray[Any], kind: str) -> None:
        if kind == _READ and memory != _DRAM:
            self._check_written(memory, at)
        clock = self.clocks[self.stage]
        for s, before in self._conflicting(kind):
            last = self.last[memory, s, before][at]
            late = np.flatnonzero(last > clock[s])
            if len(late):
                other = self.executed[s][last[late[0]] - 1]
                raise VTAError(
                    f"no token orders it after {self.program.where(other)}, which {before} "
                    f"{self._place(memory, at[late[0]])} too",
                    code="TW-VTA-RACE",
                )
        self.last[memory, self.stage, kind][at] = clock[self.stage]

    def _conflicting(self, kind: str) -> Iterator[tuple[VtaModule, str]]:
        for s in VtaModule:
            if s is not self.stage:
                yield s, _WRITE
                if kind == _WRITE:
                    yield s, _READ

    def _check_written(self, memory: str, at: NDArray[Any]) -> None:
        written = sum(
            (self.last[memory, s, _WRITE][at] for s in VtaModule),
            np.zeros(len(at), int),
        )
        missing = np.flatnonzero(written == 0)
        if len(missing):
            raise VTAError(
                f"{self._place(memory, at[missing[0]])} is read, and nothing has written it",
                code="TW-VTA-UNWRITTEN",
            )

    def _finish(self, clock: Clock) -> None:
        for s in VtaModule:
            if clock[s] < len(self.executed[s]):
                other = self.program.where(self.executed[s][-1])
                raise VTAError(
                    f"no token makes FINISH wait for {other}, which may still be running",
                    code="TW-VTA-RACE",
                )

    def _place(self, memory: str, at: int) -> str:
        if memory == _DRAM:
            return f"byte {at * self.piece:#x} of DRAM"
        return f"element {at} of {memory.upper()}"
