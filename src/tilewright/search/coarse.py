"""Coarse-to-fine beam search: first among states that differ much, then in detail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from math import inf
from typing import Final, Generic

from tilewright.base.errors import InputError
from tilewright.search.result import Result, S, SearchLimits, at_least_one, itself
from tilewright.search.run import Run

# Times the best cost of a pass: paths to states up to this cost guide the next pass.
CLOSE: Final = 1.2
ASTRAY: Final = 10  # cost penalty, as a factor, of states off those paths


def coarse_to_fine(
    start: S,
    expand: Callable[[S], Iterable[S]],
    costs: Callable[[Sequence[S]], Sequence[float]],
    *,
    shape: Callable[[S, int], Hashable],
    width: int = 32,
    passes: int = 5,
    key: Callable[[S], Hashable] | None = None,
    limits: SearchLimits | None = None,
    lower: float = 0.0,
) -> Result[S, float]:
    """The cheapest state of several beam searches, each guided by the previous one.

    shape: a coarse view of a state at a depth of 1 or more; the deeper, the more states differ. In
    pass n the cost of the k-th cheapest state with a shape at depth n is multiplied by k, so that
    the beam of `width` states keeps some of every shape. From the second pass on, 10 is added to
    this factor unless the state's shape at depth n - 1 lies on the path to a state that cost at
    most 1.2 times the best of the previous pass. expand, key: as for `beam`; a pass ends when no
    state can be expanded. (The search of Adams et al., SIGGRAPH 2019; theirs is over partial
    schedules, here every state has a cost.)

    costs: of several states at once, 0 or more, because they are multiplied. No state is evaluated
    twice. Only `lower` is proved. Raises InputError for a width or passes below 1, and as
    `Run.evaluate_all`.
    """
    at_least_one(width=width, passes=passes)
    if lower < 0:
        raise InputError(
            f"a bound of {lower!r}",
            where="coarse_to_fine",
            hint="costs must be 0 or more, because they are multiplied",
        )
    run: Run[S, float] = Run("coarse_to_fine", costs, limits, lower)
    with run:
        beams = _Beams(run, key or itself, start)
        permitted: set[Hashable] | None = None
        for depth in range(1, passes + 1):
            reached = beams.search(expand, shape, width, depth, permitted)
            permitted = beams.blessed(reached, shape, depth)
    return run.result()


class _Beams(Generic[S]):
    """Shared by the passes: the costs, and the parent of each state."""

    def __init__(
        self, run: Run[S, float], key: Callable[[S], Hashable], start: S
    ) -> None:
        self._run: Final = run
        self._key: Final = key
        self._start: Final = start
        self._costs: Final = {key(start): run.evaluate(start)}
        self._parents: Final[dict[Hashable, S]] = {}

    def search(
        self,
        expand: Callable[[S], Iterable[S]],
        shape: Callable[[S, int], Hashable],
        width: int,
        depth: int,
        permitted: Collection[Hashable] | None,
    ) -> list[S]:
        """Run one pass; returns all states that it kept, the start included."""
        kept = level = [self._start]
        seen = {self._key(self._start)}
        while level:
            self._run.check()
            children: list[S] = []
            for state in level:
                for child in expand(state):
                    if (at := self._key(child)) not in seen:
                        seen.add(at)
                        self._parents.setdefault(at, state)
                        children.append(child)
            self._evaluate(children)
            ranked = self._penalized(children, shape, depth, permitted)
            level = ranked[:width]
            kept = kept + level
        return kept

    def blessed(
        self, reached: Sequence[S], shape: Callable[[S, int], Hashable], depth: int
    ) -> set[Hashable]:
        """The shapes on the paths to states within CLOSE of the best cost."""
        least = min(map(self._cost, reached))
        shapes = set()
        for state in reached:
            if self._cost(state) <= CLOSE * least:
                shapes.add(shape(state, depth))
                while (parent := self._parents.get(self._key(state))) is not None:
                    state = parent
                    shapes.add(shape(state, depth))
        return shapes

    def _cost(self, state: S) -> float:
        return self._costs[self._key(state)]

    def _evaluate(self, states: Sequence[S]) -> None:
        fresh = {at: s for s in states if (at := self._key(s)) not in self._costs}
        if fresh:
            found = self._run.evaluate_all(list(fresh.values()), len(states))
            self._costs.update(zip(fresh, found, strict=True))

    def _penalized(
        self,
        states: Sequence[S],
        shape: Callable[[S, int], Hashable],
        depth: int,
        permitted: Collection[Hashable] | None,
    ) -> list[S]:
        """The feasible states, in order of their penalized costs."""
        alike: Counter[Hashable] = Counter()
        ranked: list[tuple[float, S]] = []
        for state in sorted(states, key=self._cost):
            if self._cost(state) == inf:
                break
            looks = shape(state, depth)
            alike[looks] += 1
            astray = permitted is not None and shape(state, depth - 1) not in permitted
            times = alike[looks] + (ASTRAY if astray else 0)
            ranked.append((self._cost(state) * times, state))
        return [state for _, state in sorted(ranked, key=_first)]


def _first(pair: tuple[float, object]) -> float:
    return pair[0]
