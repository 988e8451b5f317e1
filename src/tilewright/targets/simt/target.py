"""What all targets with blocks of threads decide alike: schedules, and the form of attention."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import prod
from typing import ClassVar, Final

from tilewright.base.errors import CompileError
from tilewright.compute.nodes import Computation
from tilewright.compute.online_softmax import may_be_attention
from tilewright.expr.nodes import Buffer
from tilewright.loops.launch import Launch
from tilewright.loops.nodes import Kernel
from tilewright.plan.questions import NO_REWRITE_PAYS, PlanCosts
from tilewright.schedule.space import Sketch
from tilewright.targets.base import Target
from tilewright.targets.simt.attention import attention_of, shape
from tilewright.targets.simt.attention_cost import (
    KEY_BLOCK,
    attention_tiles,
    time_by_blocks,
)
from tilewright.targets.simt.machine import SimtMachine
from tilewright.targets.simt.schedules import sketches

_COSTS: Final = replace(NO_REWRITE_PAYS, key_block=KEY_BLOCK)


class SimtTarget(Target):
    """A target whose kernels are launches. exact: the order of arithmetic is the program's."""

    __slots__ = ()
    fuses: ClassVar[bool] = True
    exact: bool

    @property
    def simt(self) -> SimtMachine:
        """The machine as schedules see it."""
        raise NotImplementedError

    def sketches(
        self,
        kernel: Kernel,
        computations: Sequence[Computation],
        constants: Collection[Buffer],
    ) -> Sequence[Sketch]:
        """Those that all GPUs have."""
        return sketches(kernel, computations, self.simt, self.exact)

    def is_profitable(self, computations: Sequence[Computation]) -> bool:
        """Whether a group has no other form: attention is better over blocks of keys."""
        return not may_be_attention(computations)

    def estimated_cost(
        self, computations: Sequence[Computation], constants: Collection[Buffer] = ()
    ) -> float | None:
        """Expected nanoseconds of attention over blocks of keys; None for all else.

        Without threads in step the sums of rows take barriers: there scores go through memory.
        """
        found = attention_of(computations, self.simt)
        if found is None or self.simt.warp == 1:
            return None
        asked = shape(found)
        best = attention_tiles(asked, self.simt)[0]
        return time_by_blocks(asked, best, self.simt)

    @property
    def plan_costs(self) -> PlanCosts:
        """Keys go by in blocks of what registers hold the scores of."""
        return _COSTS


def shared_of(launch: Launch) -> int:
    """Bytes that a block shares."""
    return sum(b.size * b.dtype.itemsize for b in launch.shared)


def check_block(launch: Launch, of: SimtMachine) -> None:
    """Raise CompileError (TW-LAUNCH) for a block that takes more than a machine has."""
    for count, most, what in (
        (prod(launch.threads), of.block_threads, "threads"),
        (shared_of(launch), of.shared, "bytes of shared memory"),
    ):
        if count > most:
            raise CompileError(
                f"a block takes {count:,} {what}, and one of {of.name} has {most:,} at most",
                code="TW-LAUNCH",
                where=f"launch {launch.name}",
                hint="tile the loops that are bound to threadIdx, or what is cached",
            )
