"""What the passes over a plan ask of a target, handed in as functions.

All are asked about Computations as they are; the answers are about the kernel that they become.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer


class Cost(Protocol):
    """What a target expects of Computations as one kernel, in nanoseconds; None where another
    form is better.

    constants: buffers known when compiling.
    """

    def __call__(
        self, group: Sequence[Computation], constants: Collection[Buffer] = (), /
    ) -> float | None: ...


@dataclass(frozen=True)
class Questions:
    """estimated_cost: of Computations as one kernel. is_profitable: whether they should be one."""

    estimated_cost: Cost
    is_profitable: Callable[[Sequence[Computation]], bool]
