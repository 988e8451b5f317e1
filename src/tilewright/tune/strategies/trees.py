"""Search in the tree of decisions: coarse-to-fine beam search, and Monte Carlo tree search."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, isqrt
from typing import ClassVar, Final

from tilewright.base.errors import InputError
from tilewright.search import SearchLimits, coarse_to_fine, tree_search
from tilewright.tune.strategies.prefixes import Prefix, Prefixes
from tilewright.tune.strategies.programs import outline
from tilewright.tune.strategies.proposer import ModelGuided, Setup

WIDTH: Final = 32  # maximum, as in Halide; a small effort means a narrower beam
PASSES: Final = 5
# Per round, in a new tree; most of them hit cached costs.
ITERATIONS: Final = 1024
DEEPEST: Final = 700.0  # exponents are clamped to this


class _Deciding(ModelGuided):
    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        programs = self.foresight.programs
        self._tree: Final = Prefixes(programs, self.space, setup.seeds, setup.seed)

    def _costs(self, prefixes: Sequence[Prefix]) -> list[float]:
        return self.foresight.costs(self._tree.candidates(prefixes))

    def _within(self, effort: int) -> SearchLimits:
        """A limit of `effort` more schedules: cached ones are free."""
        programs = self.foresight.programs
        most = programs.made + effort
        return SearchLimits(until=lambda: programs.made >= most)


class Tree(_Deciding):
    """Beam search in five passes; prefixes whose programs have the same outer loops are alike.

    (The search of Adams et al., SIGGRAPH 2019, over a kernel's parameters instead of stages.)
    """

    name: ClassVar[str] = "tree"

    def explore(self, effort: int) -> None:
        """Run one search; every program on the way may be proposed."""
        coarse_to_fine(
            Prefix(),
            self._tree.children,
            self._positive,
            shape=self._shape,
            width=max(2, min(WIDTH, isqrt(effort) // 4)),
            passes=PASSES,
            key=_key,
            limits=self._within(effort),
        )

    def _positive(self, prefixes: Sequence[Prefix]) -> list[float]:
        """Exponentials of the costs, because the search multiplies costs."""
        costs = self._costs(prefixes)
        return [c if c == inf else exp(max(-DEEPEST, min(c, DEEPEST))) for c in costs]

    def _shape(self, prefix: Prefix, depth: int) -> str:
        program = self._tree.program(prefix)
        return "" if program is None else outline(program.kernel, depth)


class MonteCarlo(_Deciding):
    """Monte Carlo tree search: a new tree in each round, because costs have changed."""

    name: ClassVar[str] = "mcts"

    def explore(self, effort: int) -> None:
        """Search one tree, completely if it is small."""
        try:
            tree_search(
                Prefix(),
                self._tree.expand,
                self._tree.completed,
                self._costs,
                iterations=ITERATIONS,
                rollouts=1,
                key=_key,
                seed=self.setup.seed,
                limits=self._within(effort),
            )
        except InputError:
            return  # every path is rejected: there is no outcome


def _key(prefix: Prefix) -> str:
    return prefix.key
