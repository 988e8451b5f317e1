"""Simple techniques that propose states and learn from their costs, one at a time or several.

Each is weak alone; `Bandit` prefers the successful ones. All randomness comes from the given
generator, so equal costs lead to equal proposals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import exp, inf
from random import Random
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from tilewright.search.result import S

T = TypeVar("T")
HOT: Final = 30.0
COOLING: Final = 100  # steps from HOT to 0, then the cycle restarts
# The weight of a cost difference of the size of the best cost, in units of temperature.
STEEP: Final = 50.0
POPULATION: Final = 30


class Moves(Protocol[T]):
    """Ways to make states."""

    def sample(self, random: Random, /) -> T: ...

    def neighbor(self, state: T, random: Random, /) -> T: ...

    def cross(self, a: T, b: T, random: Random, /) -> T: ...


class Technique(Protocol[T]):
    """Proposes states; each is answered by `tell`, sooner or later."""

    name: ClassVar[str]

    def ask(self, random: Random) -> T | None:
        """A state to evaluate, possibly a known one; None: it needs costs first."""
        ...

    def tell(self, state: T, cost: float, own: bool, random: Random) -> None:
        """Report a state's cost. own: whether this technique asked for it."""
        ...


class _Moving(Generic[S]):
    def __init__(self, moves: Moves[S]) -> None:
        self._moves: Final = moves
        self._start()

    def _start(self) -> None:
        """Initialize the technique's memory."""


class Uniform(_Moving[S]):
    """Uniform draws, without memory."""

    name: ClassVar[str] = "uniform"

    def ask(self, random: Random) -> S | None:
        """A random state."""
        return self._moves.sample(random)

    def tell(self, state: S, cost: float, own: bool, random: Random) -> None:
        """Ignored."""


class Sweep(Generic[S]):
    """All states in order; then none."""

    name: ClassVar[str] = "sweep"

    def __init__(self, states: Iterable[S]) -> None:
        self._states: Final = iter(states)

    def ask(self, random: Random) -> S | None:
        """The next state."""
        return next(self._states, None)

    def tell(self, state: S, cost: float, own: bool, random: Random) -> None:
        """Ignored."""


class Climb(_Moving[S]):
    """Neighbors of the best state; after 32 without improvement it restarts from a new state."""

    name: ClassVar[str] = "climb"
    patience: ClassVar[int] = 32

    def _start(self) -> None:
        self._best: S | None = None
        self._cost = inf
        self._vain = 0

    def ask(self, random: Random) -> S | None:
        """A neighbor of the best."""
        if self._best is None:
            return self._moves.sample(random)
        return self._moves.neighbor(self._best, random)

    def tell(self, state: S, cost: float, own: bool, random: Random) -> None:
        """Move to the state if it is better."""
        if cost < self._cost:
            self._best, self._cost, self._vain = state, cost, 0
        elif own:
            self._vain += 1
        if self._vain >= self.patience:
            self._start()


class Cooling(_Moving[S]):
    """Annealing whose temperature falls from 30 to 0 in 100 steps, cyclically.

    A worse state is accepted with probability exp(50 (e - e') / temperature), for costs e relative
    to the best. (The parameters of the Auto-Tuning Framework.)
    """

    name: ClassVar[str] = "cooling"

    def _start(self) -> None:
        self._here: S | None = None
        self._cost = self._best = inf
        self._steps = 0

    def ask(self, random: Random) -> S | None:
        """A neighbor of the current state."""
        if self._here is None:
            return self._moves.sample(random)
        return self._moves.neighbor(self._here, random)

    def tell(self, state: S, cost: float, own: bool, random: Random) -> None:
        """Move there, if the temperature allows."""
        self._best = min(self._best, cost)
        if not own:
            return
        temperature = HOT * (1 - self._steps % COOLING / COOLING)
        self._steps += 1
        drawn = random.random()
        if cost <= self._cost or drawn < self._chance(cost, temperature):
            self._here, self._cost = state, cost

    def _chance(self, cost: float, temperature: float) -> float:
        if cost == inf:
            return 0.0
        scale = abs(self._best) or 1.0
        return exp(-STEEP * (cost - self._cost) / scale / temperature)


class Breed(_Moving[S]):
    """Crossovers of two of the thirty best states, half of which are also mutated."""

    name: ClassVar[str] = "breed"

    def _start(self) -> None:
        self._living: list[tuple[float, int, S]] = []
        self._told = 0

    def ask(self, random: Random) -> S | None:
        """A child; at first, random states."""
        if self._told < POPULATION:
            return self._moves.sample(random)
        child = self._moves.cross(self._parent(random), self._parent(random), random)
        if random.random() < 0.5:
            child = self._moves.neighbor(child, random)
        return child

    def tell(self, state: S, cost: float, own: bool, random: Random) -> None:
        """Keep the state if it is one of the best."""
        self._told += 1
        self._living.append((cost, self._told, state))
        self._living.sort(key=lambda one: one[:2])
        del self._living[POPULATION:]

    def _parent(self, random: Random) -> S:
        count = len(self._living)
        return self._living[min(random.randrange(count), random.randrange(count))][-1]


_ALL: Final = (Cooling, Climb, Breed, Uniform)
MOVING: Final[Mapping[str, Callable[[Moves[Any]], Technique[Any]]]] = {
    made.name: made for made in _ALL
}
