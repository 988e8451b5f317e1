"""Evolutionary search: a population whose children are mutations and crossovers of its members."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from math import inf
from random import Random
from typing import Final, Generic

from tilewright.base.dataclass import dataclass
from tilewright.search.result import (
    C,
    Result,
    S,
    SearchCheckpoint,
    SearchLimits,
    at_least_one,
    itself,
)
from tilewright.search.run import Run

DRAWS: Final = 8  # per wanted child, after which a generation has fewer


@dataclass(frozen=True, slots=True)
class Breeding(Generic[S]):
    """How children are made; all randomness comes from the given generator.

    mutate: returns a state near another one. cross: returns a state between two others. crossing:
    the share of the children made by `cross`, if given.
    """

    mutate: Callable[[S, Random], S]
    cross: Callable[[S, S, Random], S] | None = None
    crossing: float = 0.5

    def child(self, ranked: Sequence[S], random: Random) -> S:
        """Make one child. ranked: the population, cheapest first; a parent is the cheaper of two
        random members."""
        mother = ranked[_tournament(len(ranked), random)]
        if self.cross is None or random.random() >= self.crossing:
            return self.mutate(mother, random)
        return self.cross(mother, ranked[_tournament(len(ranked), random)], random)


def _tournament(count: int, random: Random) -> int:
    return min(random.randrange(count), random.randrange(count))


def evolve(
    seeds: Iterable[S],
    breeding: Breeding[S],
    costs: Callable[[Sequence[S]], Sequence[C]],
    *,
    size: int = 64,
    generations: int = 50,
    key: Callable[[S], Hashable] | None = None,
    seed: int = 0,
    limits: SearchLimits | None = None,
    lower: float = -inf,
    resume: SearchCheckpoint[S, C] | None = None,
) -> Result[S, C]:
    """The cheapest of all states of an evolving population.

    A generation makes up to `size` new children; the `size` cheapest of them and their parents
    survive, so the best is never lost. costs: of several states at once, such as a cost model's
    predictions (`each` converts the cost of a single state). key: states with equal keys are the
    same, and evaluated once (default: the states themselves, which must be hashable). lower: a
    lower bound on all costs; reaching it ends the search, as does a generation without children.

    Deterministic for equal arguments. The result's checkpoint resumes a search that a limit ended,
    with all other arguments unchanged: the final result is that of an uninterrupted search. A
    generation that the limit cut short is repeated. Raises InputError for no seeds, a size or
    generations below 1, and as `Run.evaluate_all`.
    """
    at_least_one(size=size, generations=generations)
    name = key or itself
    run: Run[S, C] = Run("evolve", costs, limits, lower)
    done, states, known = run.resume(resume)

    def grow(children: dict[Hashable, S]) -> None:
        """Add children to the population and keep the cheapest."""
        nonlocal states
        found = run.evaluate_all(list(children.values()))
        known.update(zip(children, found, strict=True))
        # # A stable sort keeps the older of equal costs.
        pool = [*states, *zip(children.values(), found, strict=True)]
        states = sorted(pool, key=lambda pair: pair[1])[:size]

    with run:
        if not states:
            grow(_distinct(seeds, name))
        while states and done < generations:
            run.check()
            random = Random(f"{seed}:{done}")
            drawn = (
                breeding.child([s for s, _ in states], random)
                for _ in range(DRAWS * size)
            )
            children = _distinct(drawn, name, known, size)
            if not children:
                break
            grow(children)
            done += 1
    return run.resumable(done, states, known)


def _distinct(
    states: Iterable[S],
    key: Callable[[S], Hashable],
    known: Collection[Hashable] = (),
    most: int | None = None,
) -> dict[Hashable, S]:
    """The first `most` new states, by key."""
    fresh = ((name, state) for state in states if (name := key(state)) not in known)
    found: dict[Hashable, S] = {}
    for name, state in fresh:
        found.setdefault(name, state)
        if len(found) == most:
            break
    return found
