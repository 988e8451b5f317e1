"""Kernels of an open plan over positions: kernels of a fixed number of them, in loops.

What some positions read is gathered side by side, in their order along all open extents at once: a
kernel of fixed sizes, with all schedules of its target, then computes their results, which are
scattered to their places. No kernel depends on an extent, so no image has a remainder of its own
along each axis: only the last positions of all are fewer.

Depthwise convolutions multiply each element as often as that would move it, and those of groups not
much more often. There the positions of a block are a rectangle, and what their windows share is
moved once; rectangles at the edges are computed whole. So it is where windows are a few elements of
each row of an image, as in a first layer.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import field, replace
from itertools import takewhile
from math import isqrt, prod
from typing import Any, Final

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError, UnsupportedError, VerifyError
from tilewright.base.numbers import ceil_div
from tilewright.driver.ranges.block_counts import BlockCounts, block_counts, rereading
from tilewright.driver.ranges.part_assembly import (
    PartedWork,
    decline,
    packed_shape,
    scheduled_part,
    tell_fault,
)
from tilewright.driver.ranges.position_blocks import assembled, prod_of
from tilewright.driver.ranges.units import TOGETHER
from tilewright.expr.nodes import (
    INDEX,
    Buffer,
    Const,
    Expr,
    const,
)
from tilewright.expr.simplify import simplify
from tilewright.ir.node import Node, substitute
from tilewright.loops.nodes import Kernel
from tilewright.loops.passes.hoist import HoistedKernel
from tilewright.plan.nodes import FusionGroup, OpenExtent
from tilewright.plan.normalize import KernelSignature, kernel_signature
from tilewright.plan.positions import (
    Positions,
    PositionWindow,
    in_rectangles,
    positions,
)
from tilewright.targets.base import Target

SIZES: Final = 8  # of each dimension, at which rectangles are compared
FEWEST: Final = (
    8  # positions of a block, at least, that it pays to have half as many more of
)


def by_positions(
    kernel: Kernel,
    forms: Sequence[FusionGroup],
    constants: Collection[Buffer],
    target: Target,
    sizes: Sequence[OpenExtent],
) -> PartedWork | None:
    """The scheduled kernel of a group as a loop over blocks of positions.

    kernel: unscheduled, with all sizes of the plan. forms: the group in several forms, of which the
    first one is taken that the target is good at; the last is the group itself, which computes so
    few positions that the other one would take longer. sizes: of the plan.
    None if the group is not a function of positions, if these share nothing, if the target expects
    kernels of few positions to take too long, or if all schedules reshape a tensor irreversibly.
    """
    found: list[tuple[int, PositionKernels]] = []
    for n, group in enumerate(forms):
        made = positions(group.computations, kernel.params, constants)
        if made is not None:
            made = in_rectangles(made, TOGETHER)
            maker = PositionKernels(kernel, group, made, constants, target, sizes)
            found.append((n - len(forms), maker))
    if not found:
        decline(kernel, "positions", "it does not do the same at each position")
    elif not found[-1][1].positions.share:
        decline(kernel, "positions", "they share nothing that is read, such as weights")
        return None
    for n, (form, maker) in enumerate(found):
        least, most = maker.ends()
        chosen = maker.chosen(least, most)
        if chosen is None:
            continue
        few = _few(maker, chosen, [m for _, m in found[n + 1 :]])
        made_of = _made(maker, chosen, few)
        if made_of is not None:
            return replace(made_of, form=form)
    return None


@dataclass(frozen=True, eq=False, slots=True)
class FewPositions:
    """Another form of the group, for so many points at most."""

    maker: PositionKernels
    counts: BlockCounts
    most: int


def _few(
    maker: PositionKernels, chosen: BlockCounts, others: Sequence[PositionKernels]
) -> FewPositions | None:
    """The last other form where it takes less time than blocks of positions of several points."""
    points = maker.points
    if points == 1 or not others or others[-1].points > 1:
        return None
    other = others[-1]
    largest = chosen.counts[0] * points
    known = BlockCounts.of(other.counts(largest), other.block_cost)
    totals = range(1, largest + 1)
    faster = (known.cost(n) < chosen.cost(-(-n // points)) for n in totals)
    most = sum(1 for _ in takewhile(bool, faster))
    least, _ = other.ends()
    counts = other.chosen(least, most) if least <= most else None
    return None if counts is None else FewPositions(other, counts, most)


def _made(
    maker: PositionKernels, chosen: BlockCounts, few: FewPositions | None
) -> PartedWork | None:
    name = maker.kernel.name
    shown: dict[str, Any] = (
        {} if few is None else {"few": few.most, "by": list(few.counts.counts)}
    )
    counts, points = list(chosen.counts), maker.points
    if maker.positions.boxes:
        shown["rectangle"] = maker.grid(counts[0])
    events.emit("positions", kernel=name, at_a_time=counts, points=points, **shown)
    try:
        return assembled(maker, chosen, few)
    except (ScheduleError, UnsupportedError, VerifyError) as error:
        tell_fault(error)
        events.emit("kept-whole", kernel=name, reason=str(error))
    return None


@dataclass(frozen=True, eq=False, slots=True)
class PositionKernels:
    """Makes the kernels of some positions, and the kernel of all."""

    kernel: Kernel
    group: FusionGroup
    positions: Positions
    constants: Collection[Buffer]
    target: Target
    sizes: Sequence[OpenExtent]
    _scheduled: dict[int, HoistedKernel | str] = field(default_factory=dict)
    _works: dict[int, float] = field(default_factory=dict)

    def grid(
        self,
        count: int,
    ) -> tuple[int, ...]:
        """So many positions along each open dimension.

        In a row, or where each has several points, as near to a square as possible.
        """
        dims = len(self.positions.counts)
        steps = self.positions.steps.values()
        square = self.positions.boxes or max(steps) > 1
        rows = isqrt(count) if dims > 1 and square else 1
        while count % rows:
            rows -= 1
        return (*[1] * (dims - 2), rows, count // rows)[-dims:]

    def parts(
        self,
        count: int,
    ) -> dict[PositionWindow, Buffer]:
        """The local tensors of what is gathered and scattered."""
        found = {}
        grid = self.grid(count)
        windows = (*self.positions.windows, *self.positions.written.values())
        for n, w in enumerate(windows):
            shape = self.positions.shape(w, grid)
            name = f"{w.tensor.name}.{count}.{n}"
            found[w] = Buffer(name, shape, w.tensor.dtype)
        return found

    def signature(
        self,
        count: int,
    ) -> tuple[KernelSignature, set[Buffer]]:
        """The kernel to compile for so many positions, and its constant parameters."""
        parts = self.parts(count)
        some = self.positions.some(self.grid(count), parts)
        group = replace(self.group, computations=tuple(some))
        live = [parts[w] for w in self.positions.written.values()]
        found = kernel_signature(group, live, parts=False)
        pairs = zip(found.values, found.params, strict=True)
        return found, {p for b, p in pairs if b in self.constants}

    @property
    def points(
        self,
    ) -> int:
        """The points of a position of the last Computation, along all open dimensions."""
        found = self.positions
        return int(found.steps[found.last] ** len(found.counts))

    def work(
        self,
        count: int,
    ) -> float:
        """The nanoseconds that the target expects for the arithmetic of so many positions."""
        if count not in self._works:
            found, constants = self.signature(count)
            work = self.target.predicted_work(found.computations, constants)
            self._works[count] = work
        return self._works[count]

    def block_cost(
        self,
        count: int,
    ) -> float:
        """The nanoseconds that the target expects for a block of so many positions.

        Each block reads all weights again.
        """
        costs = self.target.open_costs
        again = rereading(self.positions.dims, self.constants, costs)
        return self.work(count) + again

    def ends(
        self,
    ) -> tuple[int, int]:
        """The least and the greatest number of positions, of all sizes of the plan."""
        return self.ends_of(prod_of(self.positions.counts))

    def ends_of(
        self,
        total: Expr,
    ) -> tuple[int, int]:
        """The least and the greatest value of an expression that grows with the plan's sizes."""
        least: dict[Node, Node] = {e.size: const(e.least, INDEX) for e in self.sizes}
        most: dict[Node, Node] = {e.size: const(e.most, INDEX) for e in self.sizes}
        found = [simplify(substitute(total, ends), {}) for ends in (least, most)]
        low, high = (int(n.value.real) if isinstance(n, Const) else 1 for n in found)
        return low, high

    def counts(
        self,
        most: int,
    ) -> list[int]:
        """Possible numbers of positions of a block, descending: powers of two, and those between.

        At most as many as a cache keeps the windows of. Where a position has several points along
        each dimension, it is a tile of a method that needs several tiles along each.
        """
        costs = self.target.open_costs
        several = self.positions.boxes or max(self.positions.steps.values()) > 1
        base = (1 << len(self.positions.counts[-2:])) if several else 1
        found = [base]
        while (
            found[-1] < min(most, costs.many_positions)
            and self.gathered(2 * found[-1]) <= costs.gathered
        ):
            found.append(2 * found[-1])
        between = [n + n // 2 for n in found[:-1] if n >= FEWEST]
        return sorted((*found, *between), reverse=True)

    def chosen(
        self,
        least: int,
        most: int,
    ) -> BlockCounts | None:
        """The numbers of positions per block, for so many in all; None if blocks do not pay."""
        costs = self.target.open_costs
        counts = self.counts(most)
        few, many = counts[-1], counts[0]
        if not self.is_good(many):
            self.decline(f"{many} at a time have no good schedule")
            return None
        # Most of a tile would be empty.
        if many >= few * costs.few_units**2:
            if self.work(few) * costs.few_units > self.work(many):
                self.decline("kernels of few positions take too long")
                return None
        while counts:
            if self.positions.boxes:
                found = self.one_box(counts)
            else:
                found = block_counts(
                    least, most, counts, self.block_cost, costs.block_gain
                )
            refused = [n for n in found.counts if isinstance(self.part(n), str)]
            if not refused:
                return found
            counts = [n for n in counts if n not in refused]
        reason = self.part(few)
        events.emit("kept-whole", kernel=self.kernel.name, reason=reason)
        return None

    def one_box(
        self,
        counts: Sequence[int],
    ) -> BlockCounts:
        """The rectangle that takes the least time on average over sizes.

        Those at the edges are computed whole, what a rectangle reads is moved once, and each begins
        as a kernel does.
        """
        begun = self.target.open_costs.call_ns
        ends = map(self.ends_of, self.positions.counts)
        lines = [
            {least + (most - least) * n // (SIZES - 1) for n in range(SIZES)}
            for least, most in ends
        ]

        def cost(count: int) -> float:
            return self.block_cost(count) + self.moving(count) + begun

        def average(count: int) -> float:
            taken = math.log(cost(count))
            for line, side in zip(lines, self.grid(count), strict=True):
                logs = [math.log(max(1, ceil_div(n, side))) for n in line]
                taken += math.fsum(logs) / len(logs)
            return taken

        return BlockCounts.of([min(counts, key=average)], cost)

    def moving(
        self,
        count: int,
    ) -> float:
        """The nanoseconds that it takes to move what so many positions read and write.

        A short piece takes as long as a whole one; what the first cache does not keep comes back
        from the second.
        """
        parts = self.parts(count).values()
        costs = self.target.open_costs
        moved = sum(
            prod(b.shape[:-1]) * ceil_div(b.shape[-1], TOGETHER) * TOGETHER
            for b in parts
        )
        beyond = sum(b.size * b.dtype.itemsize for b in parts) - costs.nearest
        return moved * costs.passed_ns + max(0, beyond) * costs.near_ns

    def decline(
        self,
        reason: str,
    ) -> None:
        """Report why blocks of this form's positions do not pay."""
        points = self.points
        which = "positions" if points == 1 else f"positions of {points} points"
        decline(self.kernel, which, reason)

    def part(
        self,
        count: int,
    ) -> HoistedKernel | str:
        """The scheduled kernel of so many positions; why there is none.

        A schedule of some numbers may reshape a tensor irreversibly, and one of others not. Where
        possible, all kernels read the constants as the first one packs them.
        """
        if count not in self._scheduled:
            found, constants = self.signature(count)
            made = (w for w in self._scheduled.values() if not isinstance(w, str))
            packed = next(map(packed_shape, made), ())
            try:
                local = {b.name for b in self.parts(count).values()}
                self._scheduled[count] = scheduled_part(
                    found, constants, self.target, local, packed
                )
            except (ScheduleError, UnsupportedError, VerifyError) as error:
                tell_fault(error)
                reason = str(error)
                name = self.kernel.name
                events.emit("kept-apart", kernel=name, count=count, reason=reason)
                self._scheduled[count] = reason
        return self._scheduled[count]

    def is_good(
        self,
        count: int,
    ) -> bool:
        """Whether the target has a good schedule for so many positions."""
        found, _ = self.signature(count)
        return self.target.is_profitable(found.computations)

    def gathered(
        self,
        count: int,
    ) -> int:
        """The bytes of what is gathered for so many positions."""
        parts = self.parts(count)
        return sum(
            parts[w].size * w.tensor.dtype.itemsize for w in self.positions.windows
        )
