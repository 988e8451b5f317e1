"""The stages of a Kernel, as in Halide: groups of statements that define a tensor.

The stores to a tensor are one stage and its updates another, like pure and update definitions. A
stage may occur several times in a kernel (a loop and its tail); `main` is the occurrence that runs
most often.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.base.dataclass import dataclass
from tilewright.expr.nodes import Buffer
from tilewright.tune.features.program import (
    FeatureAllocation,
    FeatureLine,
    FeatureLoop,
    KernelNests,
)


@dataclass(slots=True, eq=False)
class FeatureStage:
    """realized, produced, task: the number of loops of `main` around the lifetime of its buffer,
    around its computation for a consumer, and around an iteration of the parallel loops.
    allocation: None for a parameter."""

    lines: list[FeatureLine]
    main: FeatureLine
    allocation: FeatureAllocation | None
    realized: int
    produced: int
    task: int

    @property
    def executions(self) -> int:
        """Executions of all its statements."""
        return sum(line.executions for line in self.lines)

    def outside(self, depth: int) -> int:
        """Iterations of the outermost loops."""
        return math.prod(f.trips for f in self.main.loops[:depth])

    @property
    def sums(self) -> list[FeatureLoop]:
        """The loops of its reduction: inside a production, and not in the index of its result."""
        target = self.main.target
        own = self.main.loops[self.produced :]
        return [f for f in own if not target.moves(f.depth)]


def stages(found: KernelNests) -> list[FeatureStage]:
    """The stages in order of first occurrence."""
    lines = found.lines
    by_key: dict[tuple[Buffer, bool], list[FeatureLine]] = {}
    for line in lines:
        by_key.setdefault((line.target.buffer, line.reduces), []).append(line)
    allocations = {a.buffer: a for a in found.all_allocations}
    return [_stage(own, lines, allocations) for own in by_key.values()]


def _stage(
    own: list[FeatureLine],
    lines: Sequence[FeatureLine],
    allocations: dict[Buffer, FeatureAllocation],
) -> FeatureStage:
    main = max(own, key=lambda line: line.executions)
    buffer = main.target.buffer
    allocation = allocations.get(buffer)
    realized = 0 if allocation is None else len(allocation.loops)
    produced = realized
    for line in lines:
        reads = any(a.buffer is buffer and not a.writes for a in line.accesses)
        if reads and line.target.buffer is not buffer:
            produced = max(produced, common(main, line))
    kinds = [f.kind for f in main.loops]
    task = len(kinds) - kinds[::-1].index("parallel") if "parallel" in kinds else 0
    return FeatureStage(own, main, allocation, realized, produced, task)


def common(a: FeatureLine, b: FeatureLine) -> int:
    """The number of loops around both statements."""
    n = 0
    for f, g in zip(a.loops, b.loops, strict=False):
        if f is not g:
            break
        n += 1
    return n
