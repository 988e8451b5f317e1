"""What passes over a plan need to know from a target, passed in as functions and numbers.

The functions receive unscheduled Computations and answer for the kernel that they become.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

from tilewright.base.dataclass import dataclass
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.plan.decisions import BY_ESTIMATE, PlanChoice

_SAME: Final = 1e-9  # relative tolerance of times: sums in another order differ by less


class Cost(Protocol):
    """The target's estimate of Computations as one kernel, in ns; None if another form is better.

    constants: buffers known at compile time. It does not depend on names, nor on how far behind the
    start of a tensor the results are.
    """

    def __call__(
        self, group: Sequence[Computation], constants: Collection[Buffer] = (), /
    ) -> float | None: ...


@dataclass(frozen=True, slots=True)
class PlanCosts:
    """Parameters of a target's cost model that passes use for decisions.

    repeated: how often cheap arithmetic may be recomputed instead of storing its result.
    side_by_side: least contiguous elements of a tensor stored inside another. moved_ns: nanoseconds
    to copy an element in another order of axes, on all cores. near: bytes of a tensor, at most,
    whose copy takes next to nothing. group_ns: what each kernel takes at least, on all cores, where
    those of groups of channels take the place of one. deep_sum: least products in a part of a sum.
    window_gain: part of a convolution's time, at most, that its window positions may take apart.
    halo: limit for the size of a tensor with its border, relative to its own size. key_block: most
    keys in a block of attention. few_keys: least keys in a block if the last one may have fewer;
    such sizes are multiples of it. 0: sizes divide the number of keys. results: most results of a
    map or reduction. row_results: most results of all Computations of a kernel over one row.
    long_row: most elements of a row that one core processes. constant_byte_ns: nanoseconds per byte
    that a rewrite adds to the constants. launch_ns: nanoseconds of overhead per additional kernel.
    weights_gain: the speedup that justifies another layout of a convolution's constant weights.
    narrow_keys: keys of a block of attention whose scores are rounded to 16 bits, descending; they
    need not divide the number of keys. Empty: as of other attention. few_channels: of a map that is
    stored row-major, at most.
    """

    repeated: int
    side_by_side: int
    moved_ns: float
    near: int
    group_ns: float
    deep_sum: int
    window_gain: float
    halo: float
    key_block: int
    few_keys: int
    results: int
    row_results: int
    long_row: int
    constant_byte_ns: float
    launch_ns: float = 0.0
    weights_gain: float = math.inf
    narrow_keys: tuple[int, ...] = ()
    few_channels: int = 0


@dataclass(frozen=True, slots=True)
class OpenCosts:
    """Parameters of a target's cost model for the number of units or rows that a kernel of an open
    plan computes at a time.

    many_units: units per kernel of products. unit_gain: the speedup per unit that justifies a
    kernel for another number of units. few_units: if fewer single units take as long as the square
    of it at once, most of a tile would be empty. row_step: the ratio between successive numbers of
    rows per block. many_positions: of an image per kernel, at most. gathered: bytes of what these
    read, at most, so that a cache keeps them. block_gain: the speedup, on average over a range,
    that justifies a kernel for another number of positions. kept: bytes of weights, at most, that
    the second cache keeps from one block to the next. near_ns, far_ns: nanoseconds that a block
    takes per byte of these, and of others. passed_ns: nanoseconds that an element takes that is
    copied. call_ns: those that a kernel takes besides its work. nearest: bytes that the first
    cache keeps. cores: that share the work.
    """

    many_units: int
    unit_gain: float
    few_units: int
    row_step: int
    many_positions: int
    gathered: int
    block_gain: float
    kept: int
    near_ns: float
    far_ns: float
    passed_ns: float
    call_ns: float
    nearest: int
    cores: int


def dearer(one: float | None, several: Sequence[float | None]) -> str:
    """Why one kernel instead of several does not pay, by estimated nanoseconds; empty if it does.
    If the target handles one of the several badly, any kernel that it handles well is a gain."""
    if one is None:
        return "the target does not handle them well as one kernel"
    known = [t for t in several if t is not None]
    if len(known) < len(several) or one <= sum(known) * (1 + _SAME):
        return ""
    together = one / 1000
    separately = sum(known) / 1000
    return f"one kernel is expected to take {together:.1f} us, {separately:.1f} us separately"


NO_REWRITE_PAYS: Final = PlanCosts(
    repeated=1,
    side_by_side=sys.maxsize,
    moved_ns=math.inf,
    near=0,
    group_ns=0.0,
    deep_sum=sys.maxsize,
    window_gain=0.0,
    halo=1.0,
    key_block=sys.maxsize,
    few_keys=0,
    results=1,
    row_results=1,
    long_row=0,
    constant_byte_ns=0.0,
)


Decided = Callable[[str, bool], bool]


def at_this_size(what: str, here: bool) -> bool:
    """The decision of a plan that is compared with no other."""
    return here


@dataclass(frozen=True)
class Questions:
    """estimated_cost: of Computations as one kernel. is_profitable: whether they should be one.

    costs: parameters of further rewrites. decided: for a plan that is compared with those of other
    sizes, returns the decision on a named question, given the decision at this size; parts that are
    empty at this size are then kept. merged: which equal constants, by name, are one in such a
    plan. None for any other plan. in_parts: whether windows may be
    computed in parts, whose numbers are other functions of a size than the rest of a plan: in
    Winograd's tiles, along one axis after another, or in blocks of rows; and sums over axes that
    are not those of weights. choice: who decides at some sites
    instead of the estimates.
    """

    estimated_cost: Cost
    is_profitable: Callable[[Sequence[Computation]], bool]
    costs: PlanCosts
    decided: Decided | None = None
    merged: Callable[[str, str], bool] | None = None
    in_parts: bool = True
    choice: PlanChoice = BY_ESTIMATE
