"""Search over anything with a cost: the caller says how to expand, cost and bound states.

`exhaustive` and `branch_and_bound` prove their results; `beam` and `best_first` expand the cheapest
states, `coarse_to_fine` in several passes; `tree_search` samples outcomes of decisions; `descend`
and `anneal` change one state, `anneal_chains` many; `evolve` breeds a population; `by_bandit`
chooses among those techniques by their success. All take `SearchLimits` and return a `Result`: the
best state, the proved bound, and why the search stopped.
"""

from __future__ import annotations

from tilewright.search.bandit import Bandit, by_bandit
from tilewright.search.chains import anneal_chains
from tilewright.search.coarse import coarse_to_fine
from tilewright.search.evolve import Breeding, evolve
from tilewright.search.exact import Order, branch_and_bound, exhaustive
from tilewright.search.frontier import beam, best_first
from tilewright.search.local import anneal, descend
from tilewright.search.result import (
    Result,
    SearchCheckpoint,
    SearchLimits,
    StopReason,
    relative_gap,
)
from tilewright.search.run import each
from tilewright.search.techniques import MOVING, Moves, Technique
from tilewright.search.uct import tree_search
from tilewright.search.vectors import BOXED, Box

__all__ = [
    "BOXED",
    "MOVING",
    "Bandit",
    "Box",
    "Breeding",
    "SearchLimits",
    "Moves",
    "Order",
    "Result",
    "SearchCheckpoint",
    "StopReason",
    "Technique",
    "anneal",
    "anneal_chains",
    "beam",
    "best_first",
    "branch_and_bound",
    "by_bandit",
    "coarse_to_fine",
    "descend",
    "each",
    "evolve",
    "exhaustive",
    "relative_gap",
    "tree_search",
]
