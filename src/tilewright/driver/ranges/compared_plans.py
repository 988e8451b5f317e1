"""The plans of several sizes, and the open plan that stands for all of them.

Each decision that depends on costs is that of one size, the pattern. Plans at further sizes are
compared with the open plan; another process compares the graphs meanwhile, and each process plans a
part of the sizes.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import field, replace
from functools import partial
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import UnsupportedError, VerifyError
from tilewright.compute.nodes import Computation
from tilewright.driver.constants import ConstantPool
from tilewright.driver.dims import of_numbers
from tilewright.driver.processes import can_fork, meanwhile, share, workers
from tilewright.driver.ranges.between import Between
from tilewright.driver.ranges.generalize import equal, generalize
from tilewright.driver.ranges.sample_points import (
    compared_in_turn,
    dense_points,
    first_points,
    middle,
    pattern,
)
from tilewright.driver.ranges.size_terms import (
    Extents,
    Terms,
    every_floor,
    terms_of,
)
from tilewright.graph.infer import FallbackProvider
from tilewright.graph.nodes import Graph
from tilewright.graph.specialize import InferredTypes
from tilewright.plan.nodes import Plan
from tilewright.plan.questions import Questions
from tilewright.runtime.dispatch import Allowed
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.open_model import OpenModel
from tilewright.runtime.ranged_model import Key
from tilewright.runtime.threads import thread_count

PERIOD: Final = 32  # longest period of a plan with floors that the graph does not have
MakePlan = Callable[[Extents, "Questions | None"], Plan]


@dataclass(frozen=True, eq=False, slots=True)
class RangedBuilder:
    """Functions that make plans and code of a graph.

    real: the target's answers. plan_at: the plan at extents by name, optionally with other answers
    than the target's. constants: where `single` and `opened` place theirs. single: the model at
    extents by name. opened: the model of an open plan; None if the target or the options do not
    support one. typing_at: the types of the graph's values at
    extents by name. fallback: for typing. meta: of the RangedModel.
    extents: of sizes, to show them: the size of extents with a step is the number of a value.
    """

    graph: Graph
    real: Questions
    plan_at: MakePlan
    constants: ConstantPool
    single: Callable[[Extents], CompiledModel]
    opened: Callable[[Plan], OpenModel] | None
    typing_at: Callable[[Extents], InferredTypes]
    fallback: FallbackProvider | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    extents: Callable[[Extents], Extents] = dict

    def on_numbers(self, steps: Mapping[str, range]) -> RangedBuilder:
        """The functions on the numbers of the extents with a step."""
        if not steps:
            return self
        real = partial(of_numbers, steps)
        return replace(
            self,
            plan_at=lambda sizes, asked: self.plan_at(real(sizes), asked),
            single=lambda sizes: self.single(real(sizes)),
            typing_at=lambda sizes: self.typing_at(real(sizes)),
            extents=real,
        )


@dataclass(eq=False, slots=True)
class ReplayedQuestions:
    """A target's answers about the pattern, reused for other sizes.

    The names of Computations identify a question; the target answers new ones. Any answer leads to
    a correct plan, and only equal plans share code.
    """

    real: Questions
    answers: dict[Hashable, list[Any]] = field(default_factory=dict)
    in_parts: bool = True
    recording: bool = True
    given: dict[Hashable, int] = field(default_factory=dict)
    one: set[tuple[str, str]] = field(default_factory=set)

    def questions(self) -> Questions:
        """Answers for the passes, starting again at the first question.

        Attention has no blocks of keys: a block divides some numbers of keys and not others.
        """
        self.given = {}
        return Questions(
            lambda group, constants=(): self._answer(
                self.real.estimated_cost, group, constants
            ),
            lambda group: self._answer(self.real.is_profitable, group),
            replace(self.real.costs, key_block=1),
            self._decided,
            self._merged,
            self.in_parts,
        )

    def _decided(self, what: str, here: bool) -> bool:
        return bool(self._again(what, lambda: here))

    def _merged(self, one: str, other: str) -> bool:
        """Constants of several sizes that are equal at some sizes alone remain several."""
        if self.recording:
            self.one.add((one, other))
        return (one, other) in self.one

    def _answer(
        self, ask: Callable[..., Any], group: Sequence[Computation], *more: Any
    ) -> Any:
        key = (ask is self.real.is_profitable, tuple(c.name for c in group))
        return self._again(key, lambda: ask(group, *more))

    def _again(self, key: Hashable, ask: Callable[[], Any]) -> Any:
        known = self.answers.setdefault(key, [])
        if self.recording:
            known.append(ask())
            return known[-1]
        if not known:
            return ask()
        times = self.given.get(key, 0)
        self.given[key] = times + 1
        return known[min(times, len(known) - 1)]


def are_batches(graph: Graph, names: Collection[str]) -> bool:
    """Whether dimensions are first axes alone; others may be axes of images."""
    inner = {d for v in graph.inputs for d in (v.shape or ())[1:]}
    return inner.isdisjoint(names)


def open_plan(making: RangedBuilder, allowed: Allowed, some: bool) -> ComparedPlan:
    """The open plan of a graph, compared with the plans at combinations of extents.

    some: of the combinations, not all, are compared. A dimension with only one extent is not a
    size of the plan. Raises UnsupportedError naming a part that differs between two sizes by more
    than numbers.
    """
    start = pattern(allowed)
    terms: Terms = {
        name: terms_of(making.typing_at, start, name, (min(e), max(e)), middle(e, 1))
        for name, e in allowed.items()
        if len(e) > 1
    }
    try:
        plans = SamplePlans.of(making, allowed, first_points(allowed, terms), terms)
        found, odd = plans.opened(some)
    except UnsupportedError:
        terms = {name: every_floor(known, PERIOD) for name, known in terms.items()}
        if all(len(known) == 1 for known in terms.values()):
            raise
        plans = SamplePlans.of(making, allowed, dense_points(allowed, terms), terms)
        found, odd = plans.opened(some)
    compared = {key_of({**plans.points[0], **sizes}): False for sizes in odd()}
    made = ComparedPlan(found, plans, compared)
    for wanted in compared_in_turn(allowed, plans.points, terms, compared, some):
        made.compare(wanted)
    return made


@dataclass(eq=False, slots=True)
class SamplePlans:
    """The plans of sizes of a range.

    points: the first sizes, that of the pattern first. terms: of the sizes. replayed: the answers
    about the pattern. made: the plans that are made by them, of those that are needed again.
    """

    making: RangedBuilder
    allowed: Allowed
    points: Sequence[Extents]
    terms: Terms
    replayed: ReplayedQuestions
    made: dict[Key, Plan] = field(default_factory=dict)

    @staticmethod
    def of(
        making: RangedBuilder, allowed: Allowed, points: Sequence[Extents], terms: Terms
    ) -> SamplePlans:
        """Those of a range, none made yet."""
        in_parts = are_batches(making.graph, terms)
        replayed = ReplayedQuestions(making.real, in_parts=in_parts)
        return SamplePlans(making, allowed, points, terms, replayed)

    def opened(self, some: bool) -> tuple[Plan, Callable[[], list[Extents]]]:
        """The open plan through the plans at the points and, if it has the same form, at the
        largest size; and which sizes have another graph, if `some` are compared.

        Another process finds these meanwhile. Raises UnsupportedError as `open_plan`, for the plan
        first.
        """
        if not some:
            return self._through(), list
        with ExitStack() as stack:
            data: Callable[[], bytes | None] = _none
            if can_fork() and thread_count() > 1:
                data = stack.enter_context(meanwhile(self._odd))
            plan = self._through()
            told = data()

        def odd() -> list[Extents]:
            data = self._odd() if told is None else told
            found: list[Extents] = pickle.loads(data)
            return found

        return plan, odd

    def _odd(self) -> bytes:
        """The sizes whose graph computes shapes by other functions than that of the points."""
        most = [*self.points, {name: max(e) for name, e in self.allowed.items()}]
        known = [self.making.typing_at(point) for point in most]
        making = self.making
        sizes = self.allowed, most, known, making.fallback, self.terms, making.extents
        between = Between(making.graph, *sizes)
        odd = list(between.odd())
        return pickle.dumps(odd)

    def _through(self) -> Plan:
        plans = [self._plan(point) for point in self.points]
        largest = {name: max(e) for name, e in self.allowed.items()}
        bounds = {n: (min(self.allowed[n]), max(self.allowed[n])) for n in self.terms}
        own = [{n: point[n] for n in self.terms} for point in (*self.points, largest)]
        making = self.making

        def merged(found: Sequence[Plan], at: Sequence[Extents]) -> Plan:
            rest = bounds, self.terms, making.extents
            return generalize(found, at, making.graph, *rest)

        try:
            last = self._plan(largest)
            return merged([*plans, last], own)
        except UnsupportedError:  # the largest may need its own code
            return merged(plans, own[:-1])

    def _plan(self, extents: Extents) -> Plan:
        plan = self.making.plan_at(extents, self.replayed.questions())
        if not self.replayed.recording:
            self.made[key_of(extents)] = plan
        self.replayed.recording = False
        return plan

    def agrees(self, plan: Plan, extents: Extents) -> bytes:
        """Whether the plan at extents equals the open plan: one byte, 0 or 1."""
        try:
            fixed = self.made.get(key_of(extents))
            if fixed is None:
                fixed = self.making.plan_at(extents, self.replayed.questions())
            return bytes([equal(plan, extents, fixed)])
        except (UnsupportedError, VerifyError):
            return bytes([False])


@dataclass(eq=False, slots=True)
class ComparedPlan:
    """The open plan of a range, and the compared combinations of extents: whether their plan
    equals it."""

    plan: Plan
    samples: SamplePlans
    equal: dict[Key, bool]

    def compare(self, wanted: Iterable[Extents]) -> None:
        """Compare more combinations, those that are new."""
        new = [e for e in wanted if key_of(e) not in self.equal]
        jobs = [partial(self.samples.agrees, self.plan, extents) for extents in new]
        answers = share(jobs, workers(len(jobs), thread_count()))
        for extents, same in zip(new, answers, strict=True):
            # A job that raised an error raises it again here.
            told = self.samples.agrees(self.plan, extents) if same is None else same
            self.equal[key_of(extents)] = bool(told[0])


def _none() -> None:
    """No result."""


def key_of(extents: Extents) -> Key:
    """A combination of extents without their names."""
    return tuple(extents.values())
