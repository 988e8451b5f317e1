"""The cheapest schedule by a cost model of the target, without measurements."""

from __future__ import annotations

from typing import Final

from tilewright.targets.base import Target
from tilewright.tune.base import Candidate, Task
from tilewright.tune.features.facts import Facts
from tilewright.tune.models import make
from tilewright.tune.strategies import ConfidenceBounds, ProgramMaker, Setup, strategy

EFFORT: Final = 256  # schedules to try, a few milliseconds each


def cheapest(
    task: Task, target: Target, seed: int = 0, effort: int = EFFORT
) -> Candidate:
    """The cheapest candidate that a beam search finds by the target's analytic cost model.

    The search is that of Adams et al., SIGGRAPH 2019, over the parameters of sketches. It includes
    the default candidate.
    """
    model = make("analytic", Facts.of(target), seed)
    foresight = ConfidenceBounds(ProgramMaker(task), model, curiosity=0.0)
    setup = Setup(task.space, foresight, seed=seed, effort=effort)
    strategy("tree", setup).propose(2)  # the default, and one that it finds
    foresight.costs([task.space.default()])
    return next(foresight.ranked())
