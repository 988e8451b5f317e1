"""A model trained in advance, and the schedule it picks without any measurement.

Its choice is used only if it is confident. The time it may take is bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError, ScheduleError
from tilewright.loops.nodes import Kernel
from tilewright.schedule.space import Point
from tilewright.tune.base import Candidate, CostModel, Prediction, Task
from tilewright.tune.features.facts import USUAL, Facts
from tilewright.tune.features.fast import Fast
from tilewright.tune.models import stored
from tilewright.tune.models.analytic import estimates
from tilewright.tune.models.forest import TreeEnsemble
from tilewright.tune.models.objectives import LOG_SECONDS
from tilewright.tune.models.programs import Rows
from tilewright.tune.models.stored import State

NAME: Final = "pretrained"
# How far a choice must beat the default: by this many spreads, plus LEAST as a logarithm where
# costs are logarithms of seconds. With both, `benchmarks.pretrain train` chooses for 6% of the
# kernels.
MARGIN: Final = 3.0
LEAST: Final = 0.3
CANDIDATES: Final = 32
CHANGES: Final = 3  # the most parameters of the default to change
TRIES: Final = 4  # draws per candidate


@dataclass(frozen=True)
class Pretrained:
    """An ensemble of trees on the feature set `fast`, trained on programs of many operators.

    unit: of their costs (`models.objectives`). prior: whether they predict the residual of the
    analytic model's logarithms of seconds. card: its training data and its accuracy.
    """

    members: Sequence[TreeEnsemble]
    unit: str
    prior: bool
    card: Mapping[str, Any]
    facts: Facts = USUAL

    name = NAME

    @property
    def absolute(self) -> bool:
        """Whether costs are logarithms of seconds."""
        return self.unit == LOG_SECONDS

    @cached_property
    def features(self) -> Fast:
        """The extractor of kernel features."""
        return Fast(self.facts)

    def predict(self, task: str, kernels: Sequence[Kernel]) -> Prediction:
        """Predict the cost of programs; the spread is that of the members."""
        return self.judge(self.features.extract_all(kernels))

    def judge(self, rows: Rows) -> Prediction:
        """Predict the cost of programs from their features: float32 [programs, columns]."""
        found = np.stack([m.values(rows) for m in self.members])
        known = estimates(rows) if self.prior else np.zeros(len(rows))
        return Prediction(found.mean(axis=0) + known, found.std(axis=0))

    def compared(self, default: Kernel, kernels: Sequence[Kernel]) -> Prediction:
        """Predict the cost of programs relative to the default."""
        first, *rows = self.features.extract_all([default, *kernels])
        return self.beside(first, np.stack(rows))

    def beside(self, default: Rows, rows: Rows) -> Prediction:
        """Predict the cost of programs relative to the default, from their features.

        default: float32 [columns]. rows: float32 [programs, columns]. Each member takes its own
        difference, and the spread is that of these differences: an error of a member that a kernel
        and its default share cancels.
        """
        both = np.concatenate([default[None], rows])
        found = np.stack([m.values(both) for m in self.members])
        more = found[:, 1:] - found[:, :1]
        known = estimates(both) if self.prior else np.zeros(len(both))
        return Prediction(more.mean(axis=0) + known[1:] - known[0], more.std(axis=0))

    def save(self, path: Path) -> None:
        """Write the model to one file."""
        stored.write(path, NAME, self._state())

    def _state(self) -> State:
        return {
            "features": Fast.version,
            "unit": self.unit,
            "prior": self.prior,
            "members": [m.state() for m in self.members],
            "card": dict(self.card),
        }

    @staticmethod
    def load(path: Path, facts: Facts = USUAL) -> Pretrained:
        """Read a file written by `save`, for a machine.

        Raises InputError for any other file, and for a model of another version of the features.
        """
        state = stored.read(path, NAME)
        if state["features"] != Fast.version:
            raise InputError(
                f"the model has version {state['features']} of the features "
                f"{Fast.name!r}, not {Fast.version}",
                where=str(path),
                hint="train it again",
            )
        members = [TreeEnsemble.restore(m) for m in state["members"]]
        return Pretrained(members, state["unit"], state["prior"], state["card"], facts)


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
    model: CostModel | Pretrained,
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
