"""Searches with a frontier, of which they expand the cheapest states: beam, best first."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from heapq import heappop, heappush, nsmallest
from math import inf
from typing import Any, Generic

from tilewright.base.errors import InputError
from tilewright.search.result import (
    C,
    Result,
    S,
    SearchLimits,
    StopReason,
    at_least_one,
    itself,
    leading,
)
from tilewright.search.run import Run, SearchStopped, each


def beam(
    start: S,
    expand: Callable[[S], Iterable[S]],
    cost: Callable[[S], C],
    *,
    width: int = 16,
    depth: int = 12,
    key: Callable[[S], Hashable] | None = None,
    limits: SearchLimits | None = None,
    lower: float = -inf,
) -> Result[S, C]:
    """The cheapest state reached by at most `depth` expansions, keeping `width` states after each.

    expand: the successors of a state. key: states with equal keys are the same (default: the states
    themselves, which must be hashable). Among equal costs the first found is kept. lower: a lower
    bound on all costs; reaching it ends the search. Exact if the beam was wide enough for all
    states within the depth. Raises InputError for a width or depth below 1, and as `Run.evaluate`.
    """
    at_least_one(width=width, depth=depth)
    name = key or itself
    run: Run[S, C] = Run("beam", each(cost), limits, lower)
    seen = {name(start)}
    dropped = False
    with run:
        kept = [(run.evaluate(start), start)]
        for _ in range(depth):
            reached: list[tuple[C, S]] = []
            for _, state in kept:
                for after in expand(state):
                    if (at := name(after)) not in seen:
                        seen.add(at)
                        reached.append((run.evaluate(after, len(reached) + 1), after))
            # A stable sort puts the first found among equal costs first.
            kept = sorted(reached, key=_cost)[:width]
            dropped = dropped or len(reached) > width
            if not kept:
                break
    complete = run.stop is StopReason.FINISHED and not dropped
    return run.result(run.incumbent if complete else -inf)


def best_first(
    starts: Iterable[S],
    expand: Callable[[S], Iterable[S]],
    cost: Callable[[S], C],
    *,
    key: Callable[[S], Hashable] | None = None,
    bound: Callable[[S], float] | None = None,
    guess: Callable[[S], float] | None = None,
    patience: int | None = None,
    slack: float | None = None,
    expansions: int | None = None,
    limits: SearchLimits | None = None,
    lower: float = -inf,
) -> Result[S, C]:
    """The cheapest state found by repeatedly expanding the cheapest unexpanded one.

    key, lower: as for `beam`. bound: a lower bound on the cost of this one state; a state whose
    bound is not below the best cost is neither evaluated nor expanded. guess: an estimate of a
    state's cost, for numeric costs that are slow to compute; a state is queued by its guess and
    evaluated when that is the least in the queue. patience: consecutive expansions without
    improvement that end the search. slack: states that cost at least this many times the best are
    not expanded, for nonnegative costs. expansions: the maximum number. Exact if all reachable
    states were evaluated. Raises InputError for no start, a patience, a slack or expansions below
    1, a bound above its cost, and as `Run.evaluate`.
    """
    at_least_one(patience=patience, expansions=expansions)
    if slack is not None and not slack >= 1:
        raise InputError(
            f"a slack of {slack!r}", where="best_first", hint="give 1 or more"
        )
    run: Run[S, C] = Run("best_first", each(cost), limits, lower)
    waiting = _Frontier(run, key or itself, bound or _no_bound, guess, slack)
    with run:
        waiting.add(starts)
        vain = done = 0
        before = None  # the best state at the last expansion
        while waiting.states:
            _, place, evaluated, state = waiting.states[0]
            if evaluated and done == expansions:
                waiting.skipped = True
                raise SearchStopped(StopReason.EXPANSIONS)
            run.check()
            if leading(waiting.states[0][0]) > waiting.most:
                waiting.skipped = True
                break  # all others cost at least as much
            heappop(waiting.states)
            if not evaluated:
                waiting.evaluate(state, place)
                continue
            vain = vain + 1 if run.best is before else 0
            if patience is not None and vain >= patience:
                run.give_up()
            before, done = run.best, done + 1
            waiting.add(expand(state))
            if expansions is not None and guess is None:
                waiting.keep(max(1, expansions - done))
    complete = run.stop is StopReason.FINISHED and not waiting.skipped
    return run.result(run.incumbent if complete else -inf)


class _Frontier(Generic[S, C]):
    """The frontier of `best_first`. skipped: whether some visited states were dropped.

    states: (cost or guess, serial number, whether it was evaluated, state).
    """

    def __init__(
        self,
        run: Run[S, C],
        key: Callable[[S], Hashable],
        bound: Callable[[S], float],
        guess: Callable[[S], float] | None,
        slack: float | None,
    ) -> None:
        self.states: list[tuple[Any, int, bool, S]] = []
        self.skipped = False
        self._run, self._key, self._bound = run, key, bound
        self._guess, self._slack = guess, slack
        self._seen: set[Hashable] = set()

    @property
    def most(self) -> float:
        """States that cost this much or more are not expanded."""
        return inf if self._slack is None else self._slack * self._run.incumbent

    def add(self, states: Iterable[S]) -> None:
        """Add states visited for the first time that may be the best.

        A limit is noticed at each: making one may take long, also of those that are not evaluated.
        """
        for state in states:
            if self._run.best is not None:
                self._run.check(len(self.states))
            if (at := self._key(state)) in self._seen:
                continue
            self._seen.add(at)
            if self._bound(state) >= self._run.incumbent:
                self.skipped = True
            elif self._guess is None or self._run.best is None:
                self.evaluate(state, len(self._seen))
            else:
                number = self._guess(state)
                self._put(number, len(self._seen), False, state, self.most)

    def evaluate(self, state: S, place: int) -> None:
        """Compute the cost of a state and queue it by that; a new best passes any slack."""
        most = self.most
        found = self._run.evaluate(state, len(self.states) + 1)
        least, number = self._bound(state), leading(found)
        self._run.require(state, least, number, "the bound of this state", "its cost")
        self._put(found, place, True, state, most)

    def keep(self, count: int) -> None:
        """Keep the cheapest: only those can still be expanded, and the others use memory."""
        if len(self.states) > count:
            self.skipped = True
            self.states = nsmallest(count, self.states)

    def _put(
        self, number: Any, place: int, evaluated: bool, state: S, most: float
    ) -> None:
        if leading(number) < most:
            heappush(self.states, (number, place, evaluated, state))
        else:
            self.skipped = True


def _no_bound(state: object) -> float:
    return -inf


def _cost(pair: tuple[Any, Any]) -> Any:
    return pair[0]
