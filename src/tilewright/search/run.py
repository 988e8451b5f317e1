"""The state of a running search: counts, the best state, and stopping at a limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from math import inf, isnan
from types import TracebackType
from typing import Final, Generic, NoReturn

from tilewright.base import events
from tilewright.base.errors import InputError
from tilewright.base.limits import check as check_compilation
from tilewright.search.result import (
    C,
    Limits,
    Result,
    S,
    SearchCheckpoint,
    Stop,
    leading,
)

# Bounds and costs are sums of floats in different orders: they may differ by this part.
ROUNDING: Final = 1e-9


def each(cost: Callable[[S], C]) -> Callable[[Sequence[S]], Sequence[C]]:
    """A cost of several states at once, from one of a single state."""
    return lambda states: [cost(state) for state in states]


class Stopped(Exception):
    """The search is to end. Raised inside a `with run:` block, which it leaves."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(stop)
        self.stop = stop


class Run(Generic[S, C]):
    """The bookkeeping that all methods share; used as a context manager.

    A method evaluates and expands states inside the `with` block; reaching a limit leaves the
    block. costs: of several states at once. lower: a cost that no state undercuts, if the caller
    knows one; meeting it ends the search. Emits an event `search-improved` for each better state,
    and a span `search`.
    """

    def __init__(
        self,
        method: str,
        costs: Callable[[Sequence[S]], Sequence[C]],
        limits: Limits | None = None,
        lower: float = -inf,
    ) -> None:
        self.best: tuple[S, C] | None = None
        self.stop = Stop.FINISHED
        self.evaluations = 0
        self._method: Final = method
        self._costs: Final = costs
        self._limits: Final = limits or Limits()
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
        if isinstance(error, Stopped):
            self.stop = error.stop
        self._span.set(
            evaluations=self.evaluations, cost=self.incumbent, stop=str(self.stop)
        )
        if isinstance(error, Stopped):
            self._span.__exit__(None, None, None)
            return True
        self._span.__exit__(error_type, error, traceback)
        return False

    def resume(
        self, checkpoint: SearchCheckpoint[S, C] | None
    ) -> tuple[int, list[tuple[S, C]], dict[Hashable, C]]:
        """Steps done, states with their costs, and all known costs; those of a start if None."""
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
        """Since the start."""
        return time.monotonic() - self._start

    def evaluate(self, state: S, frontier: int = 0) -> C:
        """The cost of a state, as `evaluate_all`."""
        return self.evaluate_all([state], frontier)[0]

    def evaluate_all(self, states: Sequence[S], frontier: int = 0) -> Sequence[C]:
        """The costs of states; each is the best if it is cheaper than all before.

        frontier: how many states wait. Where the limit allows for fewer, the first of them are
        evaluated before the block is left. Raises InputError for costs that are not numbers, are
        below the caller's bound for all states, or are not as many as the states.
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
            raise Stopped(Stop.EVALUATIONS)
        return costs

    def _examine(self, state: S, cost: C) -> None:
        number = leading(cost)
        if isnan(number):
            raise InputError(
                f"the cost of {state!r} is {cost!r}",
                where=self._method,
                hint="give a number, and inf for what is not feasible",
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
            raise Stopped(Stop.BOUND)

    def check(self, frontier: int = 0) -> None:
        """Leave the block if time, the size of the frontier, or the caller says so."""
        check_compilation()
        limits = self._limits
        if limits.frontier is not None and frontier > limits.frontier:
            raise Stopped(Stop.FRONTIER)
        if limits.seconds is not None and self.seconds >= limits.seconds:
            raise Stopped(Stop.SECONDS)
        if limits.until is not None and limits.until():
            raise Stopped(Stop.UNTIL)

    def give_up(self) -> NoReturn:
        """Leave the block because too many steps brought nothing better."""
        raise Stopped(Stop.PATIENCE)

    def require(
        self, state: S, least: float, found: float, bound: str, what: str
    ) -> None:
        """Raise InputError if a bound is not admissible: `what` it bounds was `found` below it.

        What is not a number is refused as well.
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
        """What was found. bound: what the method proved; the caller's bound applies as well.

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
        """What was found, with the state of the search."""
        if self.best is None:
            return self.result()
        return self.result(
            checkpoint=SearchCheckpoint(steps, tuple(states), self.best, known)
        )
