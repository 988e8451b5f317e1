"""A sketch's context besides the Computations: the machine, the constants, the exactness."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate
from operator import mul

from tilewright.base.dataclass import dataclass
from tilewright.base.numbers import ceil_div
from tilewright.expr.nodes import Buffer
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.nest import existing, extents, spread
from tilewright.targets.cpu.cost import CostModel, cost_model
from tilewright.targets.cpu.machine import CpuMachine


@dataclass(frozen=True, slots=True)
class Context:
    """machine: supplies the numbers. constants: buffers known at compile time. exact: keep every
    reduction in order. around: loops over blocks around a nest, outermost first. reshaped: tensors
    temporarily have different shapes than in the kernel; overlapping tiles are refused when the
    original shapes are restored. packed: the shape of a constant as another kernel has packed it,
    which kernels of the same columns can read, too; () if there is none."""

    machine: CpuMachine
    constants: Collection[Buffer] = ()
    exact: bool = False
    around: tuple[str, ...] = ()
    reshaped: bool = False
    packed: tuple[int, ...] = ()

    @property
    def costs(self) -> CostModel:
        """What schedules cost on the machine."""
        return cost_model(self.machine)

    def threads(self, choose: Choices, name: str, good: bool) -> bool:
        """The parameter `<name>.parallel`. Not inside blocks: their loops have the threads."""
        return not self.around and choose(f"{name}.parallel", (True, False), good)

    def share(
        self, s: Schedule, loops: Sequence[str], choose: Choices, name: str
    ) -> None:
        """Run the outermost loops on all threads: as few as give each core several iterations,
        because loops that are fused divide in every iteration.

        parameter: `<name>.shared`, how many of them, where there are several and several cores.
        """
        there = existing(s, loops)
        few = _fewest(s, there, self.costs)
        if self.machine.cores > 1 and len(there) > 1:
            few = choose(f"{name}.shared", range(1, len(there) + 1), few)
        spread(s, there[:few])


def _fewest(s: Schedule, loops: Sequence[str], costs: CostModel) -> int:
    """How many of the first loops have enough iterations for all cores together, and some more
    where the cores divide those more evenly."""
    cores = costs.machine.cores
    if cores == 1 or not loops:
        return min(1, len(loops))
    found = extents(s.kernel)
    counts = list(accumulate((found[loop] for loop in loops), mul))
    wanted = min(costs.shares * cores, counts[-1])
    possible = [n for n, count in enumerate(counts, 1) if count >= wanted]

    def lost(n: int) -> float:
        """The part of the time in which some core waits, if it is worth a word."""
        count = counts[n - 1]
        part = 1 - count / (ceil_div(count, cores) * cores)
        return part if part > costs.uneven else 0.0

    return min(possible, key=lost)
