"""What the passes over a plan ask of a target, handed in as functions and numbers.

The functions are called with unscheduled Computations; the answers are about the kernel that they
become.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer

_SAME: Final = 1e-9  # of a time: sums in another order differ by less


class Cost(Protocol):
    """What a target expects of Computations as one kernel, in nanoseconds; None where another
    form is better.

    constants: buffers known when compiling.
    """

    def __call__(
        self, group: Sequence[Computation], constants: Collection[Buffer] = (), /
    ) -> float | None: ...


@dataclass(frozen=True, slots=True)
class PlanCosts:
    """Numbers of a target's cost model that passes decide by.

    repeated: times that cheap arithmetic is done again rather than its result stored. side_by_side:
    elements in memory, at least, of a tensor that lives in another. moved_products: multiply-adds
    per result that pay for moving an element. deep_sum: products of a part of a sum, at least.
    halo: times its size that a tensor may take with its border. key_block: keys of a block of
    attention, at most. results: of one map or reduction, at most. row_results: over one row, at
    most, of all Computations of a kernel. long_row: elements of a row that one core takes, at most.
    launch: nanoseconds of overhead of one more kernel.
    """

    repeated: int
    side_by_side: int
    moved_products: int
    deep_sum: int
    halo: float
    key_block: int
    results: int
    row_results: int
    long_row: int
    launch: float = 0.0


@dataclass(frozen=True, slots=True)
class OpenCosts:
    """Numbers of a target's cost model that say how many units or rows of an open plan a kernel
    does at a time.

    many_units: products, which want many. unit_gain: times faster per unit than fewer, at least,
    that a kernel of another number is. few_units: one by one, at least, in the time of many, so
    that tiles are not mostly empty. row_step: times the rows of a block that the next larger one
    has.
    """

    many_units: int
    unit_gain: float
    few_units: int
    row_step: int


def dearer(one: float | None, several: Sequence[float | None]) -> str:
    """Why one kernel in place of several does not pay, by their expected nanoseconds; empty if it
    does. If the target handles one of the several badly, any kernel that it handles well is a
    gain."""
    if one is None:
        return "the target is not good at one kernel of them"
    known = [t for t in several if t is not None]
    if len(known) < len(several) or one <= sum(known) * (1 + _SAME):
        return ""
    together = one / 1000
    separately = sum(known) / 1000
    return f"one kernel is expected to take {together:.1f} us, {separately:.1f} us separately"


NO_REWRITE_PAYS: Final = PlanCosts(
    repeated=1,
    side_by_side=sys.maxsize,
    moved_products=sys.maxsize,
    deep_sum=sys.maxsize,
    halo=1.0,
    key_block=sys.maxsize,
    results=1,
    row_results=1,
    long_row=0,
)


Decided = Callable[[str, bool], bool]


@dataclass(frozen=True)
class Questions:
    """estimated_cost: of Computations as one kernel. is_profitable: whether they should be one.

    costs: what else rewrites cost. decided: for a plan that is compared with those of other sizes,
    what to do of what is named, if one would decide so at this size; what is empty at this size
    stays then. None for any other plan.
    """

    estimated_cost: Cost
    is_profitable: Callable[[Sequence[Computation]], bool]
    costs: PlanCosts
    decided: Decided | None = None
