"""Beam search over rule applications, which keeps the cheapest derivations.

What a program costs is an argument; `cost.Cycles` is an example. Programs that are equal up to the
names of their variables are one state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tilewright.base.dataclass import dataclass
from tilewright.ir.strategy import Strategy
from tilewright.lift.derive import Derivation, places
from tilewright.lift.lambdas import key
from tilewright.lift.nodes import Fun
from tilewright.lift.strategies import run
from tilewright.search import beam

Cost = Callable[[Fun], float]


@dataclass(frozen=True, slots=True)
class RuleMove:
    """A rule that may be applied at any place, with these parameters."""

    rule: str
    sizes: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class DerivationResult:
    """The cheapest derivation, its cost, and how many programs were looked at."""

    derivation: Derivation
    cost: float
    seen: int


def move(rule: str, **sizes: int) -> RuleMove:
    """`move("split-join", m=4)`."""
    return RuleMove(rule, tuple(sizes.items()))


def search(
    start: Derivation,
    moves: Sequence[RuleMove],
    cost: Cost,
    *,
    width: int = 16,
    depth: int = 12,
    tidy: Strategy | None = None,
) -> DerivationResult:
    """The cheapest program that at most `depth` moves reach, `width` programs kept after each.

    tidy: a strategy that is run after every move. Raises InputError for a rule without a name in
    the derivation, and for a width or depth below 1.
    """
    found = beam(
        start,
        lambda derivation: _moved(derivation, moves, tidy),
        lambda derivation: cost(derivation.program),
        width=width,
        depth=depth,
        key=lambda derivation: key(derivation.program),
    )
    return DerivationResult(found.state, found.cost, found.evaluations)


def _moved(
    derivation: Derivation, moves: Sequence[RuleMove], tidy: Strategy | None
) -> Iterator[Derivation]:
    """The derivation after each move at each place where it applies."""
    for place in places(derivation.program):
        for m in moves:
            after = derivation.attempt(place, m.rule, dict(m.sizes))
            if after is not None:
                yield after if tidy is None else run(tidy, after)
