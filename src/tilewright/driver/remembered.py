"""Caches a target's answers by the structure of kernels: a search plans equal kernels often."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, Final

from tilewright.compute.canonical import canonical
from tilewright.compute.nodes import Computation
from tilewright.driver.planning import questions
from tilewright.expr.nodes import Buffer
from tilewright.plan.normalize import normalized
from tilewright.plan.questions import Questions
from tilewright.targets.base import Target


class RecordedAnswers:
    """A target's cached answers. questions: for `make_plan`.

    Two groups share an answer if they differ only in names, and the same tensors are constants.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[Hashable, Any] = {}
        asked = questions(target)
        self._cost = asked.estimated_cost
        self._profitable = asked.is_profitable
        self.questions: Final = Questions(
            self._estimated_cost, self._is_profitable, asked.costs
        )

    def predicted_time(
        self, group: Sequence[Computation], constants: Collection[Buffer]
    ) -> float:
        """The expected nanoseconds of one run of a group as one kernel."""

        def ask() -> float:
            return self._target.predicted_time(*normalized(group, constants))

        return float(self._answer("time", group, constants, ask))

    def predicted_given(self, elements: int) -> float:
        """The same as the target's."""
        return self._target.predicted_given(elements)

    def _estimated_cost(
        self, group: Sequence[Computation], constants: Collection[Buffer] = ()
    ) -> float | None:
        def ask() -> float | None:
            return self._cost(group, constants)

        found: float | None = self._answer("cost", group, constants, ask)
        return found

    def _is_profitable(self, group: Sequence[Computation]) -> bool:
        return bool(self._answer("profit", group, (), lambda: self._profitable(group)))

    def _answer(
        self,
        question: str,
        group: Sequence[Computation],
        constants: Collection[Buffer],
        ask: Callable[[], Any],
    ) -> Any:
        tensors = dict.fromkeys(b for c in group for b in c.inputs)
        tensors |= dict.fromkeys(o.tensor for c in group for o in c.outputs)
        fixed = tuple(b in constants for b in tensors)
        key = (question, canonical(group, tuple(tensors)), fixed)
        if key not in self._known:
            self._known[key] = ask()
        return self._known[key]
