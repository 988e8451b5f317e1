"""Strategies by name: what to measure next.

`evolutionary`, `annealing`, `tree` and `mcts` search with a cost model and propose the candidates
it predicts to be best. `bandit` and its techniques need no model; `random` and `exhaustive` are
baselines. All propose the default first, then the seeds, and nothing twice.
"""

from __future__ import annotations

from typing import Final

from tilewright.base.errors import InputError
from tilewright.tune.strategies.annealing import Annealing
from tilewright.tune.strategies.bandit import TECHNIQUES, ByBandit, only
from tilewright.tune.strategies.evolutionary import Evolutionary
from tilewright.tune.strategies.foresight import ConfidenceBounds
from tilewright.tune.strategies.plain import Exhaustive, RandomSampling
from tilewright.tune.strategies.programs import ProgramMaker
from tilewright.tune.strategies.proposer import Proposer, Setup
from tilewright.tune.strategies.trees import MonteCarlo, Tree

__all__ = [
    "STRATEGIES",
    "TECHNIQUES",
    "ConfidenceBounds",
    "ProgramMaker",
    "Proposer",
    "Setup",
    "strategy",
]

# By name. Others may be added.
STRATEGIES: Final[dict[str, type[Proposer]]] = {
    made.name: made
    for made in (
        Evolutionary,
        Annealing,
        Tree,
        MonteCarlo,
        ByBandit,
        RandomSampling,
        Exhaustive,
    )
}


def strategy(name: str, setup: Setup) -> Proposer:
    """Make the strategy or technique with this name.

    Raises InputError for an unknown name, and for a guided strategy if the setup has no foresight.
    """
    if name in STRATEGIES:
        return STRATEGIES[name](setup)
    if name in TECHNIQUES:
        return only(name)(setup)
    known = ", ".join([*STRATEGIES, *TECHNIQUES])
    raise InputError(
        f"there is no strategy {name!r}", where="tune", hint=f"take one of {known}"
    )
