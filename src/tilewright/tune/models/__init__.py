"""Cost models: predicted running times of programs, learned from measured ones.

`MODELS` lists them; `make` constructs one for a machine. Each is a `tune.base.CostModel`: a feature
set of kernels, a learner fitted to it, and optionally another model as its prior.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from tilewright.base.errors import InputError
from tilewright.base.text import listing
from tilewright.tune.base import CostModel
from tilewright.tune.features.base import names
from tilewright.tune.features.facts import Facts
from tilewright.tune.features.fast import Fast
from tilewright.tune.features.halide import Halide
from tilewright.tune.features.per_store import PerStore
from tilewright.tune.models.advised import Advised
from tilewright.tune.models.analytic import Analytic
from tilewright.tune.models.baselines import BlackBox, RandomGuess
from tilewright.tune.models.gaussian_process import GaussianProcess
from tilewright.tune.models.halide_net import HalideNet
from tilewright.tune.models.learned import LearnedModel
from tilewright.tune.models.learner import Ensemble, Learner
from tilewright.tune.models.loop_tree import LoopTree
from tilewright.tune.models.objectives import OBJECTIVES
from tilewright.tune.models.pretrained import shipped
from tilewright.tune.models.recursive import Recursive
from tilewright.tune.models.transfer import transferred
from tilewright.tune.models.trees import Trees


def trees(objective: str, members: int = 4, seed: int = 0) -> Ensemble:
    """An ensemble of boosted trees with an objective of OBJECTIVES."""

    def member(n: int) -> Learner:
        return Trees(OBJECTIVES[objective], n)

    return Ensemble(member, members, seed)


def _fast(objective: str, facts: Facts, seed: int) -> CostModel:
    return LearnedModel(Fast(facts), trees(objective, seed=seed))


def _residual(facts: Facts, seed: int) -> LearnedModel:
    features = Fast(facts)
    prior = Analytic(features)
    return LearnedModel(features, trees("rank", seed=seed), prior)


def _advised(facts: Facts, seed: int) -> CostModel:
    return Advised(_residual(facts, seed), shipped(facts))


def _gaussian_process(facts: Facts, seed: int) -> CostModel:
    features = Fast(facts)
    return Advised(GaussianProcess(features, Analytic(features)), shipped(facts))


def _pretrained(facts: Facts, seed: int) -> CostModel:
    return transferred(shipped(facts), Fast(facts), trees("rank", seed=seed))


def _ansor(facts: Facts, seed: int) -> CostModel:
    return LearnedModel(PerStore(), trees("throughput", seed=seed))


def _halide(facts: Facts, seed: int) -> CostModel:
    features = Halide(facts)
    columns = names(features)

    def member(n: int) -> Learner:
        return HalideNet(columns, facts.cores, n)

    return LearnedModel(features, Ensemble(member, 3, seed))


def _recursive(facts: Facts, seed: int) -> CostModel:
    def member(n: int) -> Learner:
        return Recursive(OBJECTIVES["rank"], n)

    return LearnedModel(LoopTree(), Ensemble(member, 3, seed))


# Constructors by name: from a machine's facts and a seed. Others may be added.
MODELS: Final[dict[str, Callable[[Facts, int], CostModel]]] = {
    "trees": partial(_fast, "rank"),
    "trees-seconds": partial(_fast, "regression"),
    "trees-residual": _residual,
    "trees-advised": _advised,
    "trees-pretrained": _pretrained,
    "ansor": _ansor,
    "halide": _halide,
    "recursive": _recursive,
    "gaussian-process": _gaussian_process,
    "pretrained": lambda facts, seed: shipped(facts),
    "analytic": lambda facts, seed: Analytic(Fast(facts)),
    "black-box": lambda facts, seed: BlackBox(),
    "random": lambda facts, seed: RandomGuess(seed),
}

# Those that predict nothing from a kernel, and so suit any machine.
WITHOUT_FACTS: Final = ("black-box", "random")


def make(name: str, facts: Facts, seed: int = 0) -> CostModel:
    """Construct a model of MODELS for a machine. Raises InputError for an unknown name."""
    if name not in MODELS:
        raise InputError(
            f"there is no cost model {name!r}",
            hint=f"take one of {listing(list(MODELS))}",
        )
    return MODELS[name](facts, seed)
