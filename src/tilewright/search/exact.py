"""Searches that prove their results: all states, or those that a bound does not exclude."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from enum import StrEnum
from heapq import heappop, heappush
from math import inf
from typing import Final, Generic

from tilewright.base.errors import InputError
from tilewright.search.result import (
    C,
    Result,
    S,
    SearchLimits,
    StopReason,
    relative_gap,
)
from tilewright.search.run import Run, each


class Order(StrEnum):
    """Which open state branch and bound visits next.

    depth: the last one found, children in order: among equal costs the first in that order is kept,
    and few states are open. bound: the one with the least bound: the fewest states are expanded,
    but many are open.
    """

    DEPTH = "depth"
    BOUND = "bound"


def exhaustive(
    states: Iterable[S],
    cost: Callable[[S], C],
    *,
    limits: SearchLimits | None = None,
    lower: float = -inf,
) -> Result[S, C]:
    """The cheapest of all states; exact if no limit ended the search.

    lower: a lower bound on all costs; reaching it ends the search. Raises InputError if there is no
    state, and as `Run.evaluate`.
    """
    run: Run[S, C] = Run("exhaustive", each(cost), limits, lower)
    with run:
        for state in states:
            run.evaluate(state)
    return run.result(run.incumbent if run.stop is StopReason.FINISHED else -inf)


def branch_and_bound(
    root: S,
    expand: Callable[[S], Iterable[S] | None],
    cost: Callable[[S], float],
    bound: Callable[[S], float],
    *,
    key: Callable[[S], Hashable] | None = None,
    order: Order = Order.DEPTH,
    gap: float = 0.0,
    limits: SearchLimits | None = None,
) -> Result[S | None, float]:
    """The cheapest complete state below `root`.

    expand: the children of a state; None if it is complete. cost: of a complete state; inf if it is
    not feasible. bound: a lower bound on the costs of all complete states below a state, at least
    its parent's; inf if none below is feasible. key: of states with equal keys only the first is
    visited; they must have equal costs and equal states below them. gap: how far the result's cost
    may be above the bound, see `relative_gap`.

    The result's bound holds after every stop: it is the least bound of the open and excluded
    states. If no feasible state was found, the state is None and the cost infinite; none exists if
    the bound is infinite too. Raises InputError for a negative gap, for a bound that exceeds a cost
    or a bound below its state, and as `Run.evaluate`.
    """
    if not gap >= 0:
        raise InputError(
            f"gap {gap!r}", where="branch_and_bound", hint="give 0 or more"
        )
    run: Run[S, float] = Run("branch_and_bound", each(cost), limits)
    tree: _Tree[S] = _Tree(run, order, gap, key)
    with run:
        first = bound(root)
        run.require(root, -inf, first, "the least of all bounds", "its own bound")
        tree.open([(first, root)])
        while tree.frontier:
            run.check(len(tree.frontier))
            least, state = tree.first  # it stays open if a limit is reached
            if tree.excludes(least):
                tree.close()
                continue
            children = expand(state)
            if children is None:
                found = run.evaluate(state)
                run.require(state, least, found, "the bound of this state", "its cost")
                tree.close()
                continue
            tree.close()
            below = [(bound(child), child) for child in children]
            for bounded, child in below:
                run.require(
                    child, least, bounded, "the bound of its parent", "its own bound"
                )
            tree.open([(max(least, bounded), child) for bounded, child in below])
    state_found, value = run.best or (None, inf)
    proved = min(value, tree.least)
    feasible = None if value == inf else state_found
    return Result(feasible, value, proved, run.stop, run.evaluations, run.seconds)


class _Tree(Generic[S]):
    """The open states, and the least bound of the excluded ones."""

    def __init__(
        self,
        run: Run[S, float],
        order: Order,
        gap: float,
        key: Callable[[S], Hashable] | None,
    ) -> None:
        self.frontier: Final[list[tuple[float, int, float, S]]] = []
        self._run: Final = run
        self._order: Final = order
        self._gap: Final = gap
        self._key: Final = key
        self._seen: Final[set[Hashable]] = set()
        self._excluded = inf
        self._opened = 0

    @property
    def first(self) -> tuple[float, S]:
        """The next state's bound, and the state."""
        *_, least, state = self.frontier[0]
        return least, state

    @property
    def least(self) -> float:
        """A lower bound on the costs of all open or excluded complete states."""
        return min(self._excluded, inf, *(least for _, _, least, _ in self.frontier))

    def excludes(self, least: float) -> bool:
        """Whether no state with this bound can beat the best by more than the gap."""
        if relative_gap(self._run.incumbent, least) > self._gap:
            return False
        self._excluded = min(self._excluded, least)
        return True

    def close(self) -> None:
        """Remove the next state."""
        heappop(self.frontier)

    def open(self, found: Sequence[tuple[float, S]]) -> None:
        """Add states with their bounds, except excluded and seen ones."""
        kept = []
        for least, state in found:
            if self._is_new(state) and not self.excludes(least):
                kept.append((least, state))
        for least, state in reversed(kept) if self._order is Order.DEPTH else kept:
            self._opened += 1
            rank = least if self._order is Order.BOUND else -self._opened
            heappush(self.frontier, (rank, self._opened, least, state))

    def _is_new(self, state: S) -> bool:
        if self._key is None:
            return True
        name = self._key(state)
        new = name not in self._seen
        self._seen.add(name)
        return new
