"""GEMM and ALU instructions for nests, with the elements that they access."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.base.errors import CompileError
from tilewright.expr.nodes import Var
from tilewright.targets.vta.intrinsics import ACC
from tilewright.targets.vta.kernel import GEMM, RESET, IndexLoop, VtaOperation, kernels
from tilewright.targets.vta.memory import Chip
from tilewright.targets.vta.pieces import AccessLoop, LinearAccess, Tiles, apart, tiles
from tilewright.targets.vta.stages import VtaModule
from tilewright.targets.vta.tokens import MemoryTouch, Tokens

_NAMES = ("dst", "src", "wgt")


class MicroRecorder:
    """Records the instructions that consist of micro-ops."""

    def __init__(self, chip: Chip, tokens: Tokens, where: str) -> None:
        self.chip = chip
        self.tokens = tokens
        self.where = where

    def gemm(self, loops: Mapping[Var, int], operands: Sequence[LinearAccess]) -> None:
        """Products of tiles, or zeros; operands: inp and wgt, if there are any, and acc."""
        *inputs, acc = operands
        given = [acc, *inputs]
        axes = [
            AccessLoop(
                n,
                tuple(self._element(a, a.steps.get(v, 0)) for a in given),
                (0, n),
            )
            for v, n in loops.items()
        ]
        firsts = tuple(self._element(a, a.first) for a in given)
        operation = GEMM if inputs else RESET
        box = self.chip.moved(
            Tiles(firsts, tuple(axes)), {k: a.buffer for k, a in enumerate(given)}
        )
        touched = [
            self.chip.touch(a.buffer, box, k, writes=k == 0, reads=bool(inputs))
            for k, a in enumerate(given)
        ]
        self._record(operation, box, touched)

    def _element(self, a: LinearAccess, number: int) -> int:
        lanes = self.chip.elements[a.buffer.scope].lanes
        if number % lanes:
            raise CompileError(
                f"{a.buffer.name} is not accessed by whole elements of {lanes}",
                code="TW-VTA-TILE",
                where=self.where,
            )
        return number // lanes

    def alu(
        self,
        loops: Mapping[Var, int],
        operation: VtaOperation,
        accesses: Sequence[LinearAccess],
        once: bool,
    ) -> MemoryTouch:
        """A lane operation; accesses: the accumulators it changes, and those it reads.

        once: every turn of the loops has its own accumulators. Raises CompileError if it has
        not, for then the operation would be repeated.
        """
        lanes = self.chip.elements[ACC].lanes
        box = tiles(loops, accesses, {}, lanes, self.where)
        moves = [(a.extent, a.steps[0]) for a in box.axes]
        if once and not apart(box.firsts[0], moves):
            raise CompileError(
                f"a value in {accesses[0].buffer.name} is used by several turns of the loops, and "
                "lane operations compute in place",
                code="TW-VTA-SPENT",
                where=self.where,
                hint="compute it in a separate stage first",
            )
        box = self.chip.moved(box, {k: a.buffer for k, a in enumerate(accesses)})
        touched = [
            self.chip.touch(a.buffer, box, k, writes=k == 0, reads=operation != RESET)
            for k, a in enumerate(accesses)
        ]
        self._record(operation, box, touched)
        return touched[0]

    def _record(
        self, operation: VtaOperation, box: Tiles, touched: Sequence[MemoryTouch]
    ) -> None:
        nest = [IndexLoop(a.extent, **dict(zip(_NAMES, a.steps))) for a in box.axes]
        dst, src, wgt = (*box.firsts, 0, 0)[:3]
        first = dst, src, wgt
        key = operation, tuple(nest), first
        commands = self.tokens.commands
        self.tokens.record(
            VtaModule.COMPUTE,
            touched,
            lambda: commands.launch_once(
                key, lambda: kernels(operation, nest, first, commands.config)
            ),
        )
