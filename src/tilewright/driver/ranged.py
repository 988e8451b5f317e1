"""One executable for the shapes of a range, where planning says the same of all of them.

The plans of all sizes are compared with one open plan (`generalize`): nothing is assumed of a size
that was not compared. Decisions that depend on costs are those of one size, the pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tilewright.base.errors import UnsupportedError
from tilewright.driver.generalize import equal, generalize
from tilewright.driver.open_model import OpenExecutable
from tilewright.driver.ranges import Allowed, combinations
from tilewright.graph.nodes import Graph
from tilewright.plan.nodes import Plan
from tilewright.plan.questions import Questions
from tilewright.runtime.executable import Executable

COMPARED: Final = 256  # plans of sizes that are made and compared, at most
MakePlan = Callable[[Mapping[str, int], "Questions | None"], Plan]


@dataclass(frozen=True, eq=False, slots=True)
class Ranged:
    """The executable of an open plan, and the combinations of extents that it is for."""

    executable: OpenExecutable
    covers: frozenset[tuple[int, ...]]

    def at(self, extents: Mapping[str, int]) -> Executable | None:
        """What runs at these extents; None for a combination that has code of its own."""
        opened = self.executable.plan.open
        key = tuple(extents[e.size.name] for e in opened)
        if key not in self.covers:
            return None
        return self.executable.at({e.size: extents[e.size.name] for e in opened})


@dataclass(eq=False, slots=True)
class Replayed:
    """Answers of a target about the pattern, given again in order for other sizes."""

    real: Questions
    answers: list[Any] = field(default_factory=list)
    recording: bool = True
    position: int = 0

    def questions(self) -> Questions:
        """What passes ask, from the first question on."""
        self.position = 0
        return Questions(
            lambda group, constants=(): self._answer(
                self.real.estimated_cost, group, constants
            ),
            lambda group: self._answer(self.real.is_profitable, group),
            self.real.costs,
        )

    def _answer(self, ask: Callable[..., Any], *about: Any) -> Any:
        if self.recording:
            self.answers.append(ask(*about))
        if self.position >= len(self.answers):
            raise UnsupportedError("planning asks more of one size than of another")
        self.position += 1
        return self.answers[self.position - 1]


def open_plan(
    graph: Graph,
    allowed: Allowed,
    real: Questions,
    plan_at: MakePlan,
) -> tuple[Plan, frozenset[tuple[int, ...]]]:
    """The open plan of a graph, and the combinations of extents whose own plans equal it.

    Raises UnsupportedError naming what differs between two sizes by more than numbers.
    """
    points = _points(allowed)
    replayed = Replayed(real)
    plans = []
    for point in points:
        plans.append(plan_at(point, replayed.questions()))
        replayed.recording = False
    bounds = {name: (min(e), max(e)) for name, e in allowed.items()}
    found = generalize(plans, points, graph, bounds)
    covers = set()
    for extents in combinations(allowed):
        try:
            fixed = plan_at(extents, replayed.questions())
        except UnsupportedError:
            continue
        if equal(found, extents, fixed):
            covers.add(tuple(extents.values()))
    return found, frozenset(covers)


def _points(allowed: Allowed) -> Sequence[Mapping[str, int]]:
    """The pattern, and for each dimension one that differs in it alone.

    Neither is at an end of its range, where a plan may have another form, as for an extent of 1.
    """
    start = {name: _at(extents, 2) for name, extents in allowed.items()}
    others = [start | {name: _at(e, 1)} for name, e in allowed.items()]
    return [start, *(o for o in others if o != start)]


def _at(extents: Collection[int], thirds: int) -> int:
    values = list(extents)
    return values[min(len(values) * thirds // 3, len(values) - 1)]
