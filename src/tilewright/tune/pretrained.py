"""The schedule that a model picks without any measurement.

Its choice is used only if it is confident. The time it may take is bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError, ScheduleError
from tilewright.schedule.space import Point
from tilewright.tune.base import Candidate, CostModel, Prediction, Task
from tilewright.tune.models.pretrained import Pretrained

# How far a choice must beat the default: by this many spreads, plus LEAST as a logarithm where
# costs are logarithms of seconds. With both, `benchmarks.pretrain train` chooses for 6% of the
# kernels.
MARGIN: Final = 3.0
LEAST: Final = 0.3
CANDIDATES: Final = 32
CHANGES: Final = 3  # the most parameters of the default to change
TRIES: Final = 4  # draws per candidate


@dataclass(frozen=True, slots=True)
class Advice:
    """A model's recommendation.

    point: a schedule; None to leave it to the rules. gain: the default's predicted time divided by
    that of the best candidate, if costs are logarithms of seconds; otherwise it only ranks. tried:
    how many candidates were predicted, not counting the default. reason: one line.
    """

    point: Point | None
    gain: float
    tried: int
    reason: str


def choose(
    task: Task,
    model: CostModel,
    budget_seconds: float,
    *,
    margin: float = MARGIN,
    least: float = LEAST,
    candidates: int = CANDIDATES,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
) -> Advice:
    """The best candidate near the default, if its cost plus `margin` spreads plus `least` is below
    the default's cost; else none.

    Candidates are the default with one to CHANGES parameters changed, deterministic for a seed. A
    candidate is drawn only if it and its prediction are expected to fit in the budget, assuming
    that it takes as long as the slowest before it. Nothing is measured. Raises InputError if the
    budget, the margin or `least` is negative.
    """
    if min(budget_seconds, margin, least) < 0:
        raise InputError(
            f"a budget of {budget_seconds} s, a margin of {margin} and at least {least}",
            where="choose",
            hint="give nonnegative numbers",
        )
    begun = clock()
    default = task.space.default()
    known = task.program(task.schedule(default))
    scheduled = clock()
    base = float(model.predict(task.key, [known]).cost[0])
    asking = clock() - scheduled
    longest = scheduled - begun

    points: list[Point] = []
    drawn = _near(task, default, candidates, Random(f"{seed} {task.key}"))
    while True:
        start = clock()
        left = begun + budget_seconds - start
        if longest + asking * (len(points) + 1) > left:
            reason = "the budget is spent"
            break
        point = next(drawn, None)
        longest = max(longest, clock() - start)
        if point is None:
            reason = "all candidates were predicted"
            break
        points.append(point)
    if not points:
        return Advice(None, 1.0, 0, f"no candidate: {reason}")
    kernels = [task.program(p) for p in points]
    if isinstance(model, Pretrained):
        found = model.compared(known, kernels)
    else:
        predicted = model.predict(task.key, kernels)
        found = Prediction(predicted.cost - base, predicted.spread)
    return _judged(points, found, margin, least)


def _judged(
    points: Sequence[Point], found: Prediction, margin: float, least: float
) -> Advice:
    """The candidate with the lowest upper bound on its cost, if that beats the default.

    found: costs relative to the default.
    """
    spread = margin * found.spread if margin else np.zeros(len(points))
    at_most = found.cost + spread + least
    sure = bool((at_most < 0).any())
    best = int(np.argmin(at_most if sure else found.cost))
    gain = float(np.exp(min(-found.cost[best], 50.0)))
    if sure:
        said = f"predicted {gain:.3g} times as fast as the default"
        return Advice(points[best], gain, len(points), said)
    return Advice(None, gain, len(points), "no candidate is reliably faster")


def _near(
    task: Task, default: Candidate, count: int, random: Random
) -> Iterator[Point]:
    """Yield at most `count` distinct schedules near the default."""
    seen = {default}
    for _ in range(TRIES * count):
        if len(seen) > count:
            return
        candidate = near(task, default, random)
        if candidate in seen:
            continue
        seen.add(candidate)
        try:
            yield task.schedule(candidate)
        except ScheduleError:
            continue


def near(task: Task, default: Candidate, random: Random) -> Candidate:
    """The default with one to CHANGES parameters changed, as a model's training samples have."""
    candidate = default
    for _ in range(random.randint(1, CHANGES)):
        candidate = task.space.neighbor(candidate, random)
    return candidate
