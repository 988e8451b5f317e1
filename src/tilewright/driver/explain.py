"""A compilation with all its decisions and their reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import exp
from typing import Any, Final

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError, TilewrightError, UnsupportedError
from tilewright.driver import plan_code, steps
from tilewright.driver.chosen_schedules import ChosenSchedules, chosen_schedules
from tilewright.driver.compilation import (
    Compilation,
    store_for,
    target_of,
)
from tilewright.driver.compile_lock import exclusive
from tilewright.driver.dims import Dims
from tilewright.driver.graph_passes import passed
from tilewright.driver.kernels import KernelCompiler
from tilewright.driver.options import Options
from tilewright.driver.planning import place_buffers, questions
from tilewright.driver.ranges.compared_plans import ReplayedQuestions, are_batches
from tilewright.driver.schedule_records import (
    SHARED,
    ScheduleRecord,
    records,
    shared_records,
    without_priced,
)
from tilewright.graph.nodes import Graph
from tilewright.loops.nodes import Kernel
from tilewright.loops.passes.hoist import hoist
from tilewright.plan.nodes import HOST, FusionGroup, Plan
from tilewright.plan.normalize import KernelSignature, kernel_signature
from tilewright.schedule.space import Parameter, Point, Sketch
from tilewright.targets.base import Target
from tilewright.tune.features.facts import Facts
from tilewright.tune.models import make

_OTHERS: Final = 2  # candidates per parameter to estimate, besides the chosen one


@dataclass(frozen=True, slots=True)
class Alternative:
    """A possible schedule: its sketch, and the parameter that differs, if any.

    seconds: the analytic cost model's estimate; None if a primitive refused, for `reason`.
    """

    sketch: str
    change: str
    seconds: float | None
    reason: str = ""
    chosen: bool = False


@dataclass(frozen=True)
class ExplainedKernel:
    """A kernel of the host from its Computations to its code; stages are computed on demand."""

    group: FusionGroup
    signature: KernelSignature
    record: ScheduleRecord
    fixed: tuple[bool, ...]
    compiler: KernelCompiler

    @cached_property
    def plain(self) -> Kernel:
        """The loops before any primitive."""
        return self.signature.plain()

    @property
    def finished(self) -> Kernel:
        """The loops that code is generated from, without the work on constants."""
        return self.compiler.hoisted(self.signature, self.fixed).kernel

    def code(self, kernel: Kernel) -> str:
        """Assembler text with LLVM's comments; empty if the target has none."""
        try:
            return self.compiler.target.text(kernel, self.signature.name, "listing")
        except UnsupportedError:
            return ""

    def alternatives(self) -> list[Alternative]:
        """The chosen schedule, other sketches, and other values of single parameters."""
        asked = _Asked.of(self)
        return [] if asked is None else list(asked.all())


@dataclass(frozen=True)
class ExplainedModel:
    """A model's compilation.

    before, after: the graph before and after its passes. plan: with the places of buffers. log: the
    events, in order. shared: of code for ranges of sizes, how its kernels are scheduled; there are
    no `kernels` then.
    """

    before: Graph
    after: Graph
    plan: Plan
    target: Target
    kernels: Sequence[ExplainedKernel]
    log: Sequence[events.Event]
    shared: Sequence[ScheduleRecord] = ()


def explained(graph: Graph, options: Options) -> ExplainedModel:
    """Compile a graph with static inputs, and return all decisions. Raises as `compile`."""
    compiling = Compilation.of(target_of(options), options)
    host = compiling.host
    with exclusive(), events.record() as log:
        adapted, _ = compiling.adapted(graph)
        after, _ = passed(adapted, options, compiling.multiplies)
        plan = compiling.planned(after)
        choose = chosen_schedules(plan, host, options)
        store = store_for(host, options)
        built = plan_code.kernels(plan, host, store, False, choose, compiling.device)
        placed = place_buffers(plan, built)
    log = without_priced(log)
    with exclusive():
        found = tuple(_kernels(placed, host, choose, log))
    return ExplainedModel(graph, after, placed, host, found, log)


def explained_range(
    graph: Graph, dims: Dims, here: Graph, options: Options
) -> ExplainedModel:
    """Compile a graph for ranges of sizes, and return all decisions. Raises as `compile`.

    dims: the ranges, and the values of other dimensions. here: the graph at the sizes of a call,
    whose passes are shown. The plan has no memory: each size has its own.
    """
    if options.optimize == "fast":  # as `steps.ranged` does
        options = replace(options, optimize="off")
    compiling = Compilation.of(target_of(options), options)
    with events.record() as all_sizes:
        steps.ranged(*steps.open_graph(graph, (), dims, options), options)
    with exclusive(), events.record() as log:
        adapted, _ = compiling.adapted(here)
        after, _ = passed(adapted, options, compiling.multiplies)
        asked = ReplayedQuestions(
            questions(compiling.host), in_parts=are_batches(graph, dims)
        )
        plan = compiling.planned(after, None, asked.questions())
    log += [e for e in all_sizes if e.kind in SHARED]
    shared = shared_records(all_sizes)
    return ExplainedModel(here, after, plan, compiling.host, (), log, shared)


def optimized(graph: Graph, options: Options) -> Graph:
    """A graph with static inputs after the passes over graphs. Raises as `compile`."""
    compiling = Compilation.of(target_of(options), options)
    with exclusive():
        adapted, _ = compiling.adapted(graph)
        return passed(adapted, options, compiling.multiplies)[0]


def _kernels(
    plan: Plan, host: Target, choose: ChosenSchedules, log: Sequence[events.Event]
) -> Iterator[ExplainedKernel]:
    compiler = KernelCompiler(host, host, None, choose=choose, withdraw=choose.withdraw)
    made = records(plan, host, choose, log)
    for group, record in zip(plan.groups_on(HOST), made, strict=True):
        signature = kernel_signature(group, plan.live[group])
        fixed = tuple(b in plan.data for b in signature.values)
        yield ExplainedKernel(group, signature, record, fixed, compiler)


@dataclass(frozen=True)
class _Asked:
    """The schedules of a kernel, with the estimates of a cost model."""

    record: ScheduleRecord
    sketches: Sequence[Sketch]
    foresee: Any

    @staticmethod
    def of(kernel: ExplainedKernel) -> _Asked | None:
        """None for a kernel without sketches, or a target without a cost model."""
        target, signature = kernel.compiler.target, kernel.signature
        constants = {
            p for p, known in zip(signature.params, kernel.fixed, strict=True) if known
        }
        program = kernel.plain, signature.computations, constants
        found = target.sketches(*program)
        try:
            model = make("analytic", Facts.of(target))
        except UnsupportedError:
            return None
        if not found:
            return None

        def foresee(scheduled: Kernel) -> float:
            # Work on constants is done at compile time: no run repeats it.
            left = hoist(scheduled, constants).kernel
            return exp(float(model.predict(signature.name, [left]).cost[0]))

        return _Asked(kernel.record, found, foresee)

    def all(self) -> Iterator[Alternative]:
        """All schedules, the chosen one first."""
        mine = {p.name: p.value for p in self.record.parameters}
        for sketch in self.sketches:
            if sketch.name == self.record.sketch:
                yield self._tried(sketch, mine, "", chosen=True)
                for p in self.record.parameters:
                    for value in _others(p):
                        change = f"{p.name} = {value}"
                        yield self._tried(sketch, _up_to(mine, p.name, value), change)
            else:
                yield self._tried(sketch, {}, "")

    def _tried(
        self,
        sketch: Sketch,
        values: Mapping[str, Any],
        change: str,
        chosen: bool = False,
    ) -> Alternative:
        try:
            point: Point = sketch.at(values)
            seconds = self.foresee(point.schedule.kernel)
        except ScheduleError as error:
            return Alternative(sketch.name, change, None, str(error), chosen)
        except TilewrightError as error:
            return Alternative(sketch.name, change, None, error.message, chosen)
        return Alternative(sketch.name, change, seconds, "", chosen)


def _others(p: Parameter) -> list[Any]:
    """A few evenly spaced candidates of a parameter, without the chosen one."""
    rest = [c for c in p.candidates if c != p.value]
    step = max(1, len(rest) // _OTHERS)
    return rest[::step][:_OTHERS]


def _up_to(values: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """The values before a parameter, and another one for it; later ones may depend on it."""
    found: dict[str, Any] = {}
    for key, old in values.items():
        if key == name:
            return {**found, name: value}
        found[key] = old
    return found
