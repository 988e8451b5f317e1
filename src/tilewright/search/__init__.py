"""Search over anything with a cost: the caller hands in how to expand, cost, bound and name states.

`exhaustive` and `branch_and_bound` prove what they find; `beam` and `best_first` expand the
cheapest states; `descend` and `anneal` change one; `evolve` breeds a population. All take `Limits`
and return a `Result`: the best state, what is proved about it, and why the search stopped.
"""

from __future__ import annotations

from tilewright.search.evolve import Breeding, evolve
from tilewright.search.exact import Order, branch_and_bound, exhaustive
from tilewright.search.frontier import beam, best_first
from tilewright.search.local import anneal, descend
from tilewright.search.result import Checkpoint, Limits, Result, Stop, relative_gap
from tilewright.search.run import each

__all__ = [
    "Breeding",
    "Checkpoint",
    "Limits",
    "Order",
    "Result",
    "Stop",
    "anneal",
    "beam",
    "best_first",
    "branch_and_bound",
    "descend",
    "each",
    "evolve",
    "exhaustive",
    "relative_gap",
]
