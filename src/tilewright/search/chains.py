"""Annealing of many chains at once, whose steps are evaluated together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from math import exp, inf
from random import Random
from typing import Final

from tilewright.base.errors import InputError
from tilewright.search.result import (
    Result,
    S,
    SearchCheckpoint,
    SearchLimits,
    at_least_one,
    itself,
)
from tilewright.search.run import Run

CHAINS: Final = 128  # the default number of chains (AutoTVM's)


def anneal_chains(
    starts: Iterable[S],
    neighbor: Callable[[S, Random], S],
    costs: Callable[[Sequence[S]], Sequence[float]],
    *,
    hot: float = 1.0,
    cold: float = 0.0,
    steps: int = 500,
    patience: int | None = None,
    key: Callable[[S], Hashable] | None = None,
    seed: int = 0,
    limits: SearchLimits | None = None,
    lower: float = -inf,
    resume: SearchCheckpoint[S, float] | None = None,
) -> Result[S, float]:
    """The cheapest state on chains from each start, which accept worse neighbors ever more rarely.

    costs: of several states at once, such as a cost model's predictions. hot, cold: temperatures at
    the first and the last step, in units of the cost, falling linearly; at 0 nothing worse is
    accepted. patience: consecutive steps without improvement that end the search. key, lower: as
    for `anneal`. (The annealing of AutoTVM: Chen et al., NeurIPS 2018, section 5.3.)

    Deterministic for equal arguments. The states of the result's checkpoint are the current states
    of the chains: starts for a next search, whose costs may have changed. The whole checkpoint
    resumes a search that a limit ended, as for `evolve`. Raises InputError for no starts, steps or
    a patience below 1, temperatures that do not fall to 0 or more, and as `Run.evaluate_all`.
    """
    at_least_one(steps=steps, patience=patience)
    _check_cooling(hot, cold)
    name = key or itself
    run: Run[S, float] = Run("anneal_chains", costs, limits, lower)
    done, walks, known = run.resume(resume)

    def costed(states: Sequence[S]) -> list[tuple[S, float]]:
        fresh = {at: s for s in states if (at := name(s)) not in known}
        found = run.evaluate_all(list(fresh.values())) if fresh else []
        known.update(zip(fresh, found, strict=True))
        return [(s, known[name(s)]) for s in states]

    with run:
        if not walks:
            walks = costed(list(starts))
        vain = 0
        while walks and done < steps:
            run.check()
            if patience is not None and vain >= patience:
                run.give_up()
            random = Random(f"{seed}:{done}")
            before = run.best
            near = costed([neighbor(state, random) for state, _ in walks])
            temperature = hot + (cold - hot) * done / max(1, steps - 1)
            walks = [
                there if _accepts(here[1], there[1], temperature, random) else here
                for here, there in zip(walks, near, strict=True)
            ]
            vain = vain + 1 if run.best is before else 0
            done += 1
    return run.resumable(done, walks, known)


def _check_cooling(hot: float, cold: float) -> None:
    """Raise InputError for temperatures that are not finite, are negative, or rise."""
    if not 0 <= cold <= hot < inf:
        raise InputError(
            f"temperatures from {hot!r} to {cold!r}",
            where="anneal_chains",
            hint="give 0 <= cold <= hot",
        )


def _accepts(now: float, then: float, temperature: float, random: Random) -> bool:
    """Whether a chain moves to a state with cost `then`; always draws exactly one number."""
    drawn = random.random()
    if then <= now:
        return True
    return temperature > 0 and drawn < exp((now - then) / temperature)
