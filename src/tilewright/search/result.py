"""The limits of a search, and its result: the state found and how good it is.

As mathematical solvers do, a result separates two questions: why the search stopped, and what is
proved. `bound` is a lower bound on the cost of all states; if the cost equals it, the result is
exact.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isnan
from typing import Any, Generic, Protocol, TypeVar

from tilewright.base.errors import InputError
from tilewright.base.numbers import whole


class Ordered(Protocol):
    """A cost: a number, or a tuple of numbers of which earlier ones count more."""

    def __lt__(self, other: Any, /) -> bool: ...


S = TypeVar("S")
C = TypeVar("C", bound=Ordered)


class Stop(StrEnum):
    """Why a search stopped.

    finished: the method came to its own end. bound: the cost reached the caller's bound.
    patience: too many steps brought nothing better. The others name the limit that was reached.
    """

    FINISHED = "finished"
    BOUND = "bound"
    PATIENCE = "patience"
    EVALUATIONS = "evaluations"
    EXPANSIONS = "expansions"
    SECONDS = "seconds"
    FRONTIER = "frontier"
    UNTIL = "until"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a search may take; None: as much as it likes. The first state is always evaluated,
    except by branch and bound, which may end before it reaches a complete one.

    evaluations: costs that are computed. seconds: of the wall clock; with this limit a result
    depends on the machine. frontier: states that wait to be expanded, which take the memory. until:
    asked before every evaluation but the first; true ends the search. Raises
    InputError for evaluations or a frontier below 1 and for seconds below 0.
    """

    evaluations: int | None = None
    seconds: float | None = None
    frontier: int | None = None
    until: Callable[[], bool] | None = None

    def __post_init__(self) -> None:
        at_least_one(evaluations=self.evaluations, frontier=self.frontier)
        if self.seconds is not None and not self.seconds >= 0:
            raise InputError(
                f"a limit of {self.seconds!r} seconds",
                where="search",
                hint="give 0 or more",
            )


@dataclass(frozen=True, slots=True)
class SearchCheckpoint(Generic[S, C]):
    """The state of a randomized search as plain data, from which it can resume.

    steps: how many are done. states: the population, or where the walk is, with costs. best: the
    cheapest state so far. known: costs by key. There is no state of a generator: what a step draws
    follows from the seed and its number.
    """

    steps: int
    states: tuple[tuple[S, C], ...]
    best: tuple[S, C]
    known: Mapping[Hashable, C]


@dataclass(frozen=True, slots=True)
class Result(Generic[S, C]):
    """What a search found.

    state, cost: the best; of equal costs the first. bound: no state costs less, as far as proved
    (-inf: nothing is proved); of a cost that is a tuple it bounds the first number. seconds: of the
    wall clock. checkpoint: where a search that can be resumed stood.
    """

    state: S
    cost: C
    bound: float
    stop: Stop
    evaluations: int
    seconds: float
    checkpoint: SearchCheckpoint[S, C] | None = None

    @property
    def gap(self) -> float:
        """`relative_gap` of the cost and the bound."""
        return relative_gap(leading(self.cost), self.bound)

    @property
    def exact(self) -> bool:
        """Whether it is proved that nothing costs less."""
        return leading(self.cost) <= self.bound


def leading(cost: Any) -> float:
    """A cost as one number: that, or the first of its numbers."""
    return float(cost[0] if isinstance(cost, tuple) else cost)


def relative_gap(cost: float, bound: float) -> float:
    """How far a cost may be from the best, as a part of the nearer to 0 of cost and bound.

    0 if they are equal, infinite if they differ in sign or one of them is 0 or infinite.
    """
    if cost <= bound:
        return 0.0
    if (
        isnan(cost)
        or cost in (0, inf)
        or bound in (0, -inf)
        or (cost > 0) != (bound > 0)
    ):
        return inf
    return cost / bound - 1 if cost > 0 else bound / cost - 1


def itself(state: Any) -> Hashable:
    """The key of states that are equal only to themselves, or as their class says."""
    name: Hashable = state
    return name


def at_least_one(**parameters: int | None) -> None:
    """Raise InputError unless each of a search's parameters is None or a whole number from 1."""
    if all(
        value is None or whole(value, 1) is not None for value in parameters.values()
    ):
        return
    given = [
        f"{name} {value!r}" for name, value in parameters.items() if value is not None
    ]
    raise InputError(
        f"{' and '.join(given)} must be at least 1",
        where="search",
        hint="give positive numbers",
    )
