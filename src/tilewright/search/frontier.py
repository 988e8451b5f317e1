"""Searches that keep a frontier of the cheapest states and expand those: beam, best first."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from heapq import heappop, heappush, nsmallest
from math import inf
from typing import Any

from tilewright.base.errors import InputError
from tilewright.search.result import (
    C,
    Limits,
    Result,
    S,
    Stop,
    at_least_one,
    itself,
    leading,
)
from tilewright.search.run import Run, Stopped, each


def beam(
    start: S,
    expand: Callable[[S], Iterable[S]],
    cost: Callable[[S], C],
    *,
    width: int = 16,
    depth: int = 12,
    key: Callable[[S], Hashable] | None = None,
    limits: Limits | None = None,
    lower: float = -inf,
) -> Result[S, C]:
    """The cheapest state that at most `depth` expansions reach, `width` states kept after each.

    expand: the states that one step leads to. key: states of equal keys are one (default: equal
    states are; they must be hashable). Of equal costs the first found is kept. lower: a cost that
    no state undercuts; meeting it ends the search. Exact if the beam was wide enough for all states
    within the depth. Raises InputError for a width or depth below 1, and as `Run.evaluate`.
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
            # A stable sort: of equal costs the first found comes first.
            kept = sorted(reached, key=_cost)[:width]
            dropped = dropped or len(reached) > width
            if not kept:
                break
    complete = run.stop is Stop.FINISHED and not dropped
    return run.result(run.incumbent if complete else -inf)


def best_first(
    starts: Iterable[S],
    expand: Callable[[S], Iterable[S]],
    cost: Callable[[S], C],
    *,
    key: Callable[[S], Hashable] | None = None,
    bound: Callable[[S], float] | None = None,
    patience: int | None = None,
    slack: float | None = None,
    expansions: int | None = None,
    limits: Limits | None = None,
    lower: float = -inf,
) -> Result[S, C]:
    """The cheapest state found by expanding, again and again, the cheapest not expanded yet.

    key, lower: as for `beam`. bound: a number that the cost of this one state does not undercut; a
    state whose bound is not below the best cost is neither evaluated nor expanded. patience:
    expansions in a row that find nothing better, after which the search ends. slack: a state that
    costs so many times the best or more is not expanded, for costs that are not negative.
    expansions: how many states are, at most. Exact if all states within reach were evaluated.
    Raises InputError for no start, a patience, a slack or expansions below 1, a bound above its
    cost, and as `Run.evaluate`.
    """
    at_least_one(patience=patience, expansions=expansions)
    if slack is not None and not slack >= 1:
        raise InputError(
            f"a slack of {slack!r}", where="best_first", hint="give 1 or more"
        )
    name = key or itself
    run: Run[S, C] = Run("best_first", each(cost), limits, lower)
    seen: set[Hashable] = set()
    frontier: list[tuple[C, int, S]] = []
    skipped = False

    def consider(states: Iterable[S]) -> None:
        nonlocal skipped
        for state in states:
            if (at := name(state)) in seen:
                continue
            seen.add(at)
            least = -inf if bound is None else bound(state)
            if least >= run.incumbent:
                skipped = True
                continue
            most = inf if slack is None else slack * run.incumbent
            found = run.evaluate(state, len(frontier) + 1)
            run.require(
                state, least, leading(found), "the bound of this state", "its cost"
            )
            if not leading(found) < most:
                skipped = True
                continue
            heappush(frontier, (found, len(seen), state))

    with run:
        consider(starts)
        vain = done = 0
        while frontier:
            run.check()
            if patience is not None and vain >= patience:
                run.give_up()
            if slack is not None and leading(frontier[0][0]) > slack * run.incumbent:
                skipped = True
                break  # the others cost as much, or more
            best, done = run.best, done + 1
            consider(expand(heappop(frontier)[-1]))
            vain = vain + 1 if run.best is best else 0
            if expansions is not None and len(frontier) > expansions - done:
                skipped = True
                if done == expansions:
                    raise Stopped(Stop.EXPANSIONS)
                # Only the cheapest can still be expanded; the others take memory.
                frontier = nsmallest(expansions - done, frontier)
    complete = run.stop is Stop.FINISHED and not skipped
    return run.result(run.incumbent if complete else -inf)


def _cost(pair: tuple[Any, Any]) -> Any:
    return pair[0]
