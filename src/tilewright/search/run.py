"""The bookkeeping of a running search: counts, the best state, and stopping at a limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from math import inf, isnan
from types import TracebackType
from typing import Final, Generic, NoReturn

from tilewright.base import events
from tilewright.base.errors import InputError
from tilewright.base.limits import WorkEnded
from tilewright.base.limits import check as check_compilation
from tilewright.search.result import (
    C,
    Result,
    S,
    SearchCheckpoint,
    SearchLimits,
    StopReason,
    leading,
)

# Bounds and costs are sums of floats in different orders: the allowed relative difference.
ROUNDING: Final = 1e-9


def each(cost: Callable[[S], C]) -> Callable[[Sequence[S]], Sequence[C]]:
    """Convert the cost of a single state to one of several states."""
    return lambda states: [cost(state) for state in states]


class SearchStopped(Exception):
    """Ends the search. Raised inside a `with run:` block, which it leaves."""

    def __init__(self, stop: StopReason) -> None:
        super().__init__(stop)
        self.stop = stop


class Run(Generic[S, C]):
    """The bookkeeping shared by all methods; used as a context manager.

    A method evaluates and expands states inside the `with` block; reaching a limit leaves the
    block, and so does WorkEnded if a state is known. costs: of several states at once. lower: the
    caller's lower bound on all costs, if known; reaching it ends the search. Emits an event
    `search-improved` for each better state, and a span `search`.
    """

    def __init__(
        self,
        method: str,
        costs: Callable[[Sequence[S]], Sequence[C]],
        limits: SearchLimits | None = None,
        lower: float = -inf,
    ) -> None:
        self.best: tuple[S, C] | None = None
        self.stop = StopReason.FINISHED
        self.evaluations = 0
        self._method: Final = method
        self._costs: Final = costs
        self._limits: Final = limits or SearchLimits()
        self._lower: Final = lower
        self._span: Final = events.span("search", method=method)
        self._start: Final = time.monotonic()

    def __enter__(self) -> Run[S, C]:
        self._span.__enter__()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        stopped = isinstance(error, SearchStopped)
        if isinstance(error, SearchStopped):
            self.stop = error.stop
        elif isinstance(error, WorkEnded) and self.best is not None:
            stopped = True
            self.stop = StopReason.UNTIL
        self._span.set(
            evaluations=self.evaluations, cost=self.incumbent, stop=str(self.stop)
        )
        if stopped:
            self._span.__exit__(None, None, None)
            return True
        self._span.__exit__(error_type, error, traceback)
        return False

    def resume(
        self, checkpoint: SearchCheckpoint[S, C] | None
    ) -> tuple[int, list[tuple[S, C]], dict[Hashable, C]]:
        """The steps done, the states with their costs, and all known costs; empty if None."""
        if checkpoint is None:
            return 0, [], {}
        self.best = checkpoint.best
        return checkpoint.steps, list(checkpoint.states), dict(checkpoint.known)

    @property
    def incumbent(self) -> float:
        """The cost of the best state so far; infinite if there is none."""
        return inf if self.best is None else leading(self.best[1])

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def evaluate(self, state: S, frontier: int = 0) -> C:
        """The cost of a state, as `evaluate_all`."""
        return self.evaluate_all([state], frontier)[0]

    def evaluate_all(self, states: Sequence[S], frontier: int = 0) -> Sequence[C]:
        """Compute the costs of states and update the best.

        frontier: number of queued states. If the limit allows fewer evaluations, the first states
        are evaluated before the block is left. Raises InputError for costs that are not numbers or
        are below the caller's bound, and if there are not as many costs as states.
        """
        if self.evaluations:
            self.check(frontier)
        most = self._limits.evaluations
        room = len(states) if most is None else most - self.evaluations
        batch = states[:room]
        costs = self._costs(batch) if batch else []
        if len(costs) != len(batch):
            raise InputError(
                f"{len(costs)} costs for {len(batch)} states", where=self._method
            )
        self.evaluations += len(batch)
        for state, cost in zip(batch, costs, strict=True):
            self._examine(state, cost)
        if room < len(states):
            raise SearchStopped(StopReason.EVALUATIONS)
        return costs

    def _examine(self, state: S, cost: C) -> None:
        number = leading(cost)
        if isnan(number):
            raise InputError(
                f"the cost of {state!r} is {cost!r}",
                where=self._method,
                hint="give a number, and inf for an infeasible state",
            )
        self.require(state, self._lower, number, "the bound of all states", "its cost")
        if self.best is None or cost < self.best[1]:
            self._improve(state, cost)

    def _improve(self, state: S, cost: C) -> None:
        self.best = state, cost
        events.emit(
            "search-improved",
            method=self._method,
            cost=self.incumbent,
            evaluations=self.evaluations,
        )
        if self.incumbent <= self._lower:
            raise SearchStopped(StopReason.BOUND)

    def check(self, frontier: int = 0) -> None:
        """Leave the block at a limit on time or the frontier, or if the caller wants to stop."""
        check_compilation()
        limits = self._limits
        if limits.frontier is not None and frontier > limits.frontier:
            raise SearchStopped(StopReason.FRONTIER)
        if limits.seconds is not None and self.seconds >= limits.seconds:
            raise SearchStopped(StopReason.SECONDS)
        if limits.until is not None and limits.until():
            raise SearchStopped(StopReason.UNTIL)

    def give_up(self) -> NoReturn:
        """Leave the block because of too many steps without improvement."""
        raise SearchStopped(StopReason.PATIENCE)

    def require(
        self, state: S, least: float, found: float, bound: str, what: str
    ) -> None:
        """Raise InputError for an inadmissible bound: `what` it bounds is `found`, which is lower.

        Also raises for NaN.
        """
        if isnan(found) or found < least - ROUNDING * abs(least):
            raise InputError(
                f"{bound} is {least:.12g}, but {what} is {found:.12g}; the state is {state!r}",
                where=self._method,
                hint="a bound must not exceed any cost that it bounds",
            )

    def result(
        self, bound: float = -inf, checkpoint: SearchCheckpoint[S, C] | None = None
    ) -> Result[S, C]:
        """Build the result. bound: what the method proved; the caller's bound applies too.

        Raises InputError if no state was evaluated.
        """
        if self.best is None:
            raise InputError(
                "there is no state", where=self._method, hint="give at least one"
            )
        state, cost = self.best
        proved = min(max(bound, self._lower), leading(cost))
        count, seconds = self.evaluations, self.seconds
        return Result(state, cost, proved, self.stop, count, seconds, checkpoint)

    def resumable(
        self, steps: int, states: Sequence[tuple[S, C]], known: Mapping[Hashable, C]
    ) -> Result[S, C]:
        """Build the result with a checkpoint."""
        if self.best is None:
            return self.result()
        return self.result(
            checkpoint=SearchCheckpoint(steps, tuple(states), self.best, known)
        )
