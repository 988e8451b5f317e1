"""The limits of a search, and its result: the state found and how good it is.

Like those of mathematical solvers, a result separates two questions: why the search stopped, and
what is proved. `bound` is a lower bound on the cost of all states; if the cost equals it, the
result is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from enum import StrEnum
from math import inf, isnan
from typing import Any, Generic, Protocol, TypeVar

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.base.numbers import whole


class Ordered(Protocol):
    """A cost: a number, or a tuple of numbers in lexicographic order."""

    def __lt__(self, other: Any, /) -> bool: ...


S = TypeVar("S")
C = TypeVar("C", bound=Ordered)


class StopReason(StrEnum):
    """Why a search stopped.

    finished: the method ended by itself. bound: the cost reached the caller's bound. patience: too
    many steps without improvement. The others name the limit that was reached.
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
class SearchLimits:
    """The limits of a search; None: no limit. The first state is always evaluated, except by branch
    and bound, which may end before it reaches a complete one.

    evaluations: number of costs computed. seconds: wall time; with this limit a result depends on
    the machine. frontier: number of states queued for expansion, which determine the memory. until:
    called before every evaluation except the first, and at each new state; true ends the search.
    Raises InputError for evaluations or a frontier below 1 and for seconds below 0.
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

    steps: number done. states: the population, or the current states, with costs. best: the
    cheapest state so far. known: costs by key. It needs no state of a generator: the randomness of
    a step follows from the seed and the step's number.
    """

    steps: int
    states: tuple[tuple[S, C], ...]
    best: tuple[S, C]
    known: Mapping[Hashable, C]


@dataclass(frozen=True, slots=True)
class Result(Generic[S, C]):
    """The result of a search.

    state, cost: the best; the first among equals. bound: a proved lower bound on all costs (-inf:
    nothing is proved); for tuples it bounds the first number. seconds: wall time. checkpoint: to
    resume the search, if possible.
    """

    state: S
    cost: C
    bound: float
    stop: StopReason
    evaluations: int
    seconds: float
    checkpoint: SearchCheckpoint[S, C] | None = None

    @property
    def gap(self) -> float:
        """`relative_gap` of the cost and the bound."""
        return relative_gap(leading(self.cost), self.bound)

    @property
    def exact(self) -> bool:
        """Whether it is proved that no state costs less."""
        return leading(self.cost) <= self.bound


def leading(cost: Any) -> float:
    """A cost as one number: itself, or the first number of a tuple."""
    return float(cost[0] if isinstance(cost, tuple) else cost)


def relative_gap(cost: float, bound: float) -> float:
    """The distance of a cost from its bound, relative to whichever is nearer to 0.

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
    """The default key: the state itself."""
    name: Hashable = state
    return name


def at_least_one(**parameters: int | None) -> None:
    """Raise InputError unless each of a search's parameters is None or an integer of at least 1."""
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
