"""Common decisions of all targets with blocks of threads: schedules, and the form of attention."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import ClassVar, Final

from tilewright.base.errors import CompileError
from tilewright.compute.attention import may_be_attention
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.graph.blocks import BlockCosts
from tilewright.loops.launch import Launch, LaunchProgram
from tilewright.loops.nodes import Kernel
from tilewright.loops.passes.block_memory import BlockMemory
from tilewright.loops.passes.constant_memory import constants_of
from tilewright.loops.scopes import OF_CLUSTER
from tilewright.plan.questions import NO_REWRITE_PAYS, PlanCosts
from tilewright.schedule.space import Sketch
from tilewright.schedule.space.patterns import classify
from tilewright.targets.base import Target
from tilewright.targets.simt.attention import attention_of, shape
from tilewright.targets.simt.attention_cost import (
    KEY_BLOCK,
    attention_tiles,
    time_by_blocks,
)
from tilewright.targets.simt.cost import block_costs
from tilewright.targets.simt.machine import SimtMachine
from tilewright.targets.simt.predict import tiles, time_in_tiles
from tilewright.targets.simt.products import Product, product_of
from tilewright.targets.simt.schedules import sketches
from tilewright.targets.simt.tiling import tiling

DEEP: Final = 256  # products of a part of a sum, at least
WEIGHTS_GAIN: Final = 1.05  # of kernels whose weights get another layout, at least
_COSTS: Final = replace(
    NO_REWRITE_PAYS, key_block=KEY_BLOCK, deep_sum=DEEP, weights_gain=WEIGHTS_GAIN
)


class SimtTarget(Target):
    """A target whose kernels are launches. exact: the order of arithmetic is the program's."""

    __slots__ = ()
    fuses: ClassVar[bool] = True
    exact: bool

    @property
    def simt(self) -> SimtMachine:
        """The machine as schedules see it."""
        raise NotImplementedError

    @property
    def peaks(self) -> tuple[float, float] | None:
        """As described: a multiply-add is two operations; bytes are of the device's memory."""
        return 2.0 * self.simt.units * self.simt.rate, self.simt.bandwidth

    @property
    def blocks(self) -> BlockCosts:
        """As the cost model of GPUs says."""
        return block_costs(self.simt)

    def sketches(
        self,
        kernel: Kernel,
        computations: Sequence[Computation],
        constants: Collection[Buffer],
    ) -> Sequence[Sketch]:
        """The sketches of all GPUs."""
        return sketches(kernel, computations, self.simt, self.exact)

    def is_profitable(self, computations: Sequence[Computation]) -> bool:
        """Whether a group has no other form: attention is better over blocks of keys."""
        return not may_be_attention(computations)

    def estimated_cost(
        self, computations: Sequence[Computation], constants: Collection[Buffer] = ()
    ) -> float | None:
        """Expected nanoseconds of attention over blocks of keys, and of a product; None for all
        else.

        Without threads in step the sums of rows take barriers: there scores go through memory.
        """
        if len(computations) == 1:
            return self._of_product(computations[0])
        found = attention_of(computations, self.simt)
        if found is None or self.simt.warp == 1:
            return None
        asked = shape(found)
        best = attention_tiles(asked, self.simt)[0]
        return time_by_blocks(asked, best, self.simt)

    def _of_product(self, c: Computation) -> float | None:
        """The time of a product, with its results written and read once."""
        if not all(d.static and d.extent for d in c.dims):
            return None
        product = product_of(classify((c,)))
        time = None if product is None else self.product_time(product)
        if product is None or time is None:
            return None
        results = product.points // math.prod(d.extent for d in product.sums)
        return time + 2 * results * product.itemsize / self.simt.bandwidth

    def product_time(self, product: Product) -> float | None:
        """Nanoseconds of a product in the tile that is expected to be the fastest."""
        of = self.simt
        best = tiles(product, of, of.shared_pays, self.exact)[:1]
        if not best:
            return None
        plan = tiling(product, best[0])
        return time_in_tiles(plan, of, of.shared_pays, self.exact)

    @property
    def plan_costs(self) -> PlanCosts:
        """Blocks of keys are as large as registers can hold the scores of; sums may be split."""
        return replace(_COSTS, launch_ns=self.simt.launch_ns)


def check_constants(program: LaunchProgram, of: SimtMachine) -> None:
    """Raise CompileError (TW-LAUNCH) for more in constant memory than a machine has."""
    found = constants_of(program)
    count = sum(b.size * b.dtype.itemsize for b in found)
    if count > of.constant:
        raise CompileError(
            f"{', '.join(b.name for b in found)} take {count:,} bytes of constant memory, but "
            f"{of.name} has {of.constant:,}",
            code="TW-LAUNCH",
            where=f"kernel {program.name}",
            hint="leave the largest ones in global memory",
        )


def check_clusters(program: LaunchProgram, machine: str, has: bool) -> None:
    """Raise CompileError (TW-LAUNCH) for memory of a cluster where a machine has no clusters."""
    found = [b for x in program.launches for b in x.shared if b.scope == OF_CLUSTER]
    if found and not has:
        raise CompileError(
            f"{found[0].name} is in the memory of a cluster of blocks, which {machine} lacks",
            code="TW-LAUNCH",
            where=f"kernel {program.name}",
            hint="use global memory and two launches; NVIDIA's GPUs have clusters from sm_90 on",
        )


def check_block(launch: Launch, of: SimtMachine) -> None:
    """Raise CompileError (TW-LAUNCH) for a block that takes more than a machine has."""
    for count, most, what in (
        (math.prod(launch.threads), of.block_threads, "threads"),
        (BlockMemory.of(launch).nbytes, of.shared, "bytes of shared memory"),
    ):
        if count > most:
            raise CompileError(
                f"a block takes {count:,} {what}, but {of.name} allows at most {most:,}",
                code="TW-LAUNCH",
                where=f"launch {launch.name}",
                hint="use smaller tiles for the loops bound to threadIdx, or for caches",
            )
