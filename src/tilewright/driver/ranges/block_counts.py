"""How many positions kernels compute at a time: several numbers, so that little is left over."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.base.numbers import ceil_div
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import INDEX, Buffer, Expr, Max, const
from tilewright.plan.questions import OpenCosts

POINTS: Final = 32  # totals by which numbers are compared, at most
Cost = Callable[[int], float]


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """Numbers of positions per block, descending, and what each leaves to the next one.

    left: as many positions, at most; more are computed by one more block, partly for nothing. The
    last one leaves none. costs: nanoseconds of a block.
    """

    counts: tuple[int, ...]
    left: tuple[int, ...]
    costs: tuple[float, ...]

    @staticmethod
    def of(
        counts: Sequence[int],
        cost: Cost,
        exact: bool = False,
    ) -> BlockCounts:
        """These numbers, with what costs least to leave; exact: with nothing computed for nothing,
        if the last number is 1."""
        costs = tuple(map(cost, counts))
        found = BlockCounts((counts[-1],), (0,), costs[-1:])
        for count, here in reversed(list(zip(counts[:-1], costs, strict=False))):
            rests = (n for n in range(count) if exact or found.cost(n) <= here)
            left = max(rests)
            found = BlockCounts(
                (count, *found.counts), (left, *found.left), (here, *found.costs)
            )
        return found

    def cost(
        self,
        total: int,
    ) -> float:
        """Expected nanoseconds of so many positions."""
        done, taken = 0, 0.0
        for count, left, cost in zip(self.counts, self.left, self.costs, strict=True):
            times = max(0, (total - done + count - 1 - left) // count)
            done += times * count
            taken += times * cost
        return taken

    def most(
        self,
        total: int,
    ) -> list[int]:
        """How often a block of each number runs, at most, for at most so many positions."""
        found, rest = [], total
        for count, left in zip(self.counts, self.left, strict=True):
            found.append(max(0, rest + count - 1 - left) // count)
            rest = left
        return found

    def loops(
        self,
        total: Expr,
    ) -> list[tuple[int, Expr, Expr]]:
        """Of each number the first position, and how often a block of it runs."""
        found: list[tuple[int, Expr, Expr]] = []
        done: Expr = const(0, INDEX)
        for count, left in zip(self.counts, self.left, strict=True):
            rest = total - done + const(count - 1 - left, INDEX) if found else total
            if not found and count - 1 - left:
                rest = total + const(count - 1 - left, INDEX)
            times = rest // const(count, INDEX)
            if found:
                times = Max(times, const(0, INDEX))
            found.append((count, done, times))
            done = done + times * const(count, INDEX)
        return found


def block_counts(
    least: int,
    most: int,
    counts: Sequence[int],
    cost: Cost,
    gain: float,
    exact: bool = False,
) -> BlockCounts:
    """The numbers, out of `counts`, for totals from `least` to `most`.

    counts: descending. gain: times the speed, on average over totals, that another number needs.
    exact: as for `BlockCounts.of`; the last number is then one of those chosen.
    """
    ratio = max(most, 1) / max(least, 1)
    totals = {round(max(least, 1) * ratio ** (n / (POINTS - 1))) for n in range(POINTS)}

    def average(
        chosen: Sequence[int],
    ) -> float:
        found = BlockCounts.of(chosen, cost, exact)
        return math.fsum(math.log(found.cost(n)) for n in totals) / len(totals)

    alone = {count: average([count]) for count in (counts[-1:] if exact else counts)}
    chosen = [min(alone, key=alone.__getitem__)]
    now = min(alone.values())
    while len(chosen) < len(counts):
        others = [sorted([*chosen, n], reverse=True) for n in counts if n not in chosen]
        wishes = {tuple(some): average(some) for some in others}
        best = min(wishes, key=wishes.__getitem__)
        if wishes[best] > now - math.log(gain):
            break
        chosen, now = list(best), wishes[best]
    return BlockCounts.of(chosen, cost, exact)


def speedup(cores: int, inside: Sequence[int | None]) -> int:
    """How many times as fast a block is if cores share its work; 1 if it is too little to share.

    inside: how often the parallel loops of a block run.
    """
    rounds = (n / ceil_div(n, cores) for n in inside if n)
    return int(min(rounds, default=cores if inside else 1))


def rereading(
    computations: Iterable[Computation], constants: Collection[Buffer], costs: OpenCosts
) -> float:
    """The nanoseconds that each block takes to read all constants of its Computations again.

    Not those that grow with a size, of which a block reads its own part.
    """
    inputs = {b for c in computations for b in c.inputs}
    read = {b for b in inputs.intersection(constants) if b.static}
    weights = sum(b.size * b.dtype.itemsize for b in read)
    return weights * (costs.near_ns if weights <= costs.kept else costs.far_ns)
