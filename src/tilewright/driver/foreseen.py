"""The schedule that a model of the target finds the cheapest, without any measurement."""

from __future__ import annotations

from typing import Final

from tilewright.targets.base import Target
from tilewright.tune.base import Candidate, Task
from tilewright.tune.features.facts import Facts
from tilewright.tune.models import make
from tilewright.tune.strategies import Foresight, ProgramMaker, Setup, strategy

EFFORT: Final = 256  # schedules that are made, some milliseconds each


def cheapest(
    task: Task, target: Target, seed: int = 0, effort: int = EFFORT
) -> Candidate:
    """The cheapest candidate by the target's analytic model, of those that a beam search meets.

    (The search of Adams et al., SIGGRAPH 2019, over the parameters of sketches.) The default is
    among them.
    """
    model = make("analytic", Facts.of(target), seed)
    foresight = Foresight(ProgramMaker(task), model, curiosity=0.0)
    setup = Setup(task.space, foresight, seed=seed, effort=effort)
    strategy("tree", setup).propose(2)  # the default, and one that it searches for
    foresight.costs([task.space.default()])
    return next(foresight.ranked())
