"""Searches that change one state step by step: descent, which only improves it, and annealing."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from math import exp, inf
from random import Random

from tilewright.base.errors import InputError
from tilewright.search.result import (
    C,
    Result,
    S,
    SearchCheckpoint,
    SearchLimits,
    at_least_one,
    itself,
)
from tilewright.search.run import Run, each


def descend(
    starts: Iterable[S],
    moves: Sequence[Callable[[S], S]],
    cost: Callable[[S], C],
    *,
    limits: SearchLimits | None = None,
    lower: float = -inf,
) -> Result[S, C]:
    """The best start, improved by each move in turn until none improves it.

    A move to a cheaper state is taken at once; the next move continues from there. Unless a limit
    ended the search, the result is a local minimum: no single move improves it. lower: a lower
    bound on all costs; reaching it ends the search. A state that is reached again is evaluated
    again: pass a cached cost function. Raises InputError for no start, and as `Run.evaluate`.
    """
    run: Run[S, C] = Run("descend", each(cost), limits, lower)
    with run:
        for state in starts:
            run.evaluate(state)
        before = None
        while run.best is not None and run.best is not before:
            before = run.best
            for move in moves:
                run.evaluate(move(run.best[0]))
    return run.result()


def anneal(
    start: S,
    neighbor: Callable[[S, Random], S],
    cost: Callable[[S], float],
    *,
    hot: float,
    cold: float,
    steps: int = 1000,
    key: Callable[[S], Hashable] | None = None,
    seed: int = 0,
    limits: SearchLimits | None = None,
    lower: float = -inf,
    resume: SearchCheckpoint[S, float] | None = None,
) -> Result[S, float]:
    """The cheapest state on a walk that accepts worse neighbors ever more rarely.

    neighbor: returns a state near another one, with randomness only from the given generator. hot,
    cold: temperatures at the first and the last step, in units of the cost; a step to a state that
    costs `t` more is accepted with probability 1/e at temperature `t`. key: states with equal keys
    are the same, and evaluated once (default: the states themselves, which must be hashable).
    lower: a lower bound on all costs; reaching it ends the search.

    Deterministic for equal arguments. The result's checkpoint resumes a search that a limit ended,
    with all other arguments unchanged: the final result is that of an uninterrupted search. Raises
    InputError for steps below 1, for temperatures that rise or are not above 0, and as
    `Run.evaluate`.
    """
    at_least_one(steps=steps)
    if not 0 < cold <= hot < inf:
        raise InputError(
            f"temperatures from {hot!r} to {cold!r}",
            where="anneal",
            hint="give 0 < cold <= hot",
        )
    name = key or itself
    run: Run[S, float] = Run("anneal", each(cost), limits, lower)
    done, states, known = run.resume(resume)

    def known_cost(state: S) -> float:
        if (at := name(state)) not in known:
            known[at] = run.evaluate(state)
        return known[at]

    with run:
        if not states:
            states = [(start, known_cost(start))]
        while done < steps:
            run.check()
            random = Random(f"{seed}:{done}")
            state, now = states[0]
            near = neighbor(state, random)
            then = known_cost(near)
            temperature = hot * (cold / hot) ** (done / max(1, steps - 1))
            if then <= now or random.random() < exp((now - then) / temperature):
                states = [(near, then)]
            done += 1
    return run.resumable(done, states, known)
