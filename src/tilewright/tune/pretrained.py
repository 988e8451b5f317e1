"""A model that was trained beforehand, and what is chosen by it without any measurement.

Its choice is taken only where it is sure. What it costs to ask is bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np

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
# By how much a choice must beat the default: in spreads, and on top as a logarithm, where costs are
# logarithms of seconds. With both, `benchmarks.pretrain train` chooses for 6% of the kernels.
MARGIN: Final = 3.0
LEAST: Final = 0.3
CANDIDATES: Final = 32
CHANGES: Final = 3  # at most so many parameters of the default are changed
TRIES: Final = 4  # draws for each candidate that is wanted


@dataclass(frozen=True)
class Pretrained:
    """Trees of the set `fast`, fitted to programs of many operators.

    unit: of their costs (`models.objectives`). prior: whether they say what is left of the analytic
    model's logarithms of seconds. card: what it was made from, and how good it is.
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
        """What is read from kernels."""
        return Fast(self.facts)

    def predict(self, task: str, kernels: Sequence[Kernel]) -> Prediction:
        """What programs cost; the spread is that of the members."""
        return self.judge(self.features.extract_all(kernels))

    def judge(self, rows: Rows) -> Prediction:
        """What programs cost by their features: float32 [programs, columns]."""
        found = np.stack([m.values(rows) for m in self.members])
        known = estimates(rows) if self.prior else np.zeros(len(rows))
        return Prediction(found.mean(axis=0) + known, found.std(axis=0))

    def compared(self, default: Kernel, kernels: Sequence[Kernel]) -> Prediction:
        """What programs cost more than the default."""
        first, *rows = self.features.extract_all([default, *kernels])
        return self.beside(first, np.stack(rows))

    def beside(self, default: Rows, rows: Rows) -> Prediction:
        """What programs cost more than the default, by their features.

        default: float32 [columns]. rows: float32 [programs, columns]. Each member compares for
        itself, so the spread is that of the differences: what members do not know of a kernel, it
        and its default have in common.
        """
        both = np.concatenate([default[None], rows])
        found = np.stack([m.values(both) for m in self.members])
        more = found[:, 1:] - found[:, :1]
        known = estimates(both) if self.prior else np.zeros(len(both))
        return Prediction(more.mean(axis=0) + known[1:] - known[0], more.std(axis=0))

    def save(self, path: Path) -> None:
        """Write it into one file."""
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
        """Read what `save` wrote, for a machine.

        Raises InputError for another file, and for a model of other features than these.
        """
        state = stored.read(path, NAME)
        if state["features"] != Fast.version:
            raise InputError(
                f"the model is of version {state['features']} of the features "
                f"{Fast.name!r}, and they are at {Fast.version}",
                where=str(path),
                hint="train it again",
            )
        members = [TreeEnsemble.restore(m) for m in state["members"]]
        return Pretrained(members, state["unit"], state["prior"], state["card"], facts)


@dataclass(frozen=True, slots=True)
class Advice:
    """What a model advises.

    point: a schedule; None to leave it to the rules. gain: the default's predicted time by that of
    the best candidate, if costs are logarithms of seconds; else only its order says something.
    tried: candidates that were predicted, without the default. reason: in one line.
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
    """The best candidate near the default, where its cost, `margin` spreads and `least` are
    together less than what the default costs; else none.

    Candidates are the default with one to CHANGES parameters changed, the same for a seed. None is
    begun that is not expected to be done, prediction included, within the budget: as long as the
    longest before it. Nothing is measured. Raises InputError for a negative number of these.
    """
    if min(budget_seconds, margin, least) < 0:
        raise InputError(
            f"a budget of {budget_seconds} s, a margin of {margin} and at least {least}",
            where="choose",
            hint="give numbers from 0 on",
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
        return Advice(None, 1.0, 0, f"there is no candidate: {reason}")
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
    """The candidate that is surest to be fast, if it is sure enough.

    found: what each costs more than the default.
    """
    spread = margin * found.spread if margin else np.zeros(len(points))
    at_most = found.cost + spread + least
    sure = bool((at_most < 0).any())
    best = int(np.argmin(at_most if sure else found.cost))
    gain = float(np.exp(min(-found.cost[best], 50.0)))
    if sure:
        said = f"predicted {gain:.3g} times as fast as the default"
        return Advice(points[best], gain, len(points), said)
    return Advice(None, gain, len(points), "no candidate is surely faster")


def _near(
    task: Task, default: Candidate, count: int, random: Random
) -> Iterator[Point]:
    """At most `count` schedules near the default, none twice."""
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
    """The default with one to CHANGES parameters changed: what a model is asked about."""
    candidate = default
    for _ in range(random.randint(1, CHANGES)):
        candidate = task.space.neighbor(candidate, random)
    return candidate
