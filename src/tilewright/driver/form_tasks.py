"""The forms of a model's convolutions as tasks of the tuner.

A task has a candidate for each form that is possible and differs: Winograd's method in each tile
that `math` allows, the direct sum, a product for each position of the window. Its program is all
kernels that the plan makes of the form, with their default schedules, one after the other, so that
its time is the sum of theirs, with the copies that a form needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Unpack

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError
from tilewright.compute.canonical import canonical
from tilewright.compute.toom_cook import STRIDES
from tilewright.driver.built import BuiltGroup
from tilewright.driver.chosen_forms import key_of_forms
from tilewright.driver.compile_lock import exclusive
from tilewright.driver.kernels import KernelCompiler
from tilewright.driver.options import Options
from tilewright.driver.reference import reference
from tilewright.driver.same_results import TOLERANCE
from tilewright.driver.stages import prepared
from tilewright.driver.tasks import alone, as_bytes
from tilewright.graph.nodes import Graph, Value
from tilewright.ir.passes import Pipeline
from tilewright.plan.forms import (
    BY_ESTIMATE,
    DIRECT,
    WINDOWS,
    FormChoice,
    OneForm,
    may_differ,
    of_tile,
)
from tilewright.plan.nodes import HOST, FusionGroup, Plan
from tilewright.plan.normalize import kernel_signature
from tilewright.plan.pipeline import SplitWindows, Winograd
from tilewright.runtime.model import CompiledModel
from tilewright.schedule.space import Point
from tilewright.targets.base import Target
from tilewright.tune.base import Candidate, Task
from tilewright.tune.measure.reference import ReferenceResult, pack, unpack
from tilewright.tune.space.listed import ListedSpace

if TYPE_CHECKING:
    from tilewright.driver.keywords import CompileOptions

Array = np.ndarray[Any, Any]
FORMS: Final = (DIRECT, WINDOWS, *map(of_tile, STRIDES))


def form_tasks(
    source: Any,
    example_inputs: Sequence[Any] = (),
    *,
    dims: Mapping[str, int] | None = None,
    **options: Unpack[CompileOptions],
) -> list[Task]:
    """A task for each distinct convolution of the host that has several forms.

    source, example_inputs, dims, options: as for `tilewright.compile`. The default is the form that
    the target's estimate chooses. Of equal convolutions, `calls` is the number. Raises the errors
    of `compile`.
    """
    chosen = Options.of(options)
    with exclusive():
        graph, compiling = prepared(source, example_inputs, dims, chosen)
        plans: list[Plan] = []
        passes: list[Pipeline[Plan]] = []
        compiling.planned(
            graph,
            lambda _, plan: plans.append(plan),
            lowered=lambda _, pipeline: passes.append(pipeline),
            forms=BY_ESTIMATE,
        )
        (pipeline,) = passes
        kinds = [type(p) for p in pipeline.passes]
        if Winograd not in kinds:
            return []
        first = kinds.index(Winograd)
        plan = plans[first]  # the first is the lowered one, before all passes
        rest = replace(pipeline, passes=pipeline.passes[first:])
        groups: dict[str, list[_Convolution]] = {}
        for group in filter(may_differ, plan.groups_on(HOST)):
            key = key_of_forms(plan, group, compiling.host, chosen).text
            made = _Convolution(group, _only(plan, group), rest, compiling.host)
            groups.setdefault(key, []).append(made)
        return [
            same[0].task(key, same)
            for key, same in groups.items()
            if len(same[0].forms) > 1
        ]


def _only(plan: Plan, group: FusionGroup) -> Plan:
    """The plan of one group, whose inputs and outputs are those of the group."""
    outputs = [b for b in group.writes if b in plan.live[group]]
    data = {b: plan.data[b] for b in group.reads if b in plan.data}
    inputs = [b for b in group.reads if b not in data]
    values = {b: Value(b.name, b.dtype, b.shape) for b in (*inputs, *outputs)}
    given, results = ([values[b] for b in part] for part in (inputs, outputs))
    graph = Graph(group.name, tuple(given), tuple(results), ())
    return Plan(graph, (group,), {v: b for b, v in values.items()}, data)


@dataclass(frozen=True)
class _Convolution:
    """A convolution before it has a form. plan: of it alone. passes: those that choose a form, and
    those after them."""

    group: FusionGroup
    plan: Plan
    passes: Pipeline[Plan]
    target: Target

    @cached_property
    def forms(self) -> dict[str, Plan]:
        """The plan in each form that is possible and differs; the default first."""
        default = self._formed(BY_ESTIMATE)
        found: dict[str, tuple[str, Plan]] = {}
        for name in FORMS:
            form = OneForm(name)
            plan = self._formed(form)
            if form.possible:
                found.setdefault(_text(plan), (name, plan))
        usual = found.pop(_text(default))
        return dict([usual, *found.values()])

    def _formed(self, choice: FormChoice) -> Plan:
        passes = (
            replace(p, choice=choice) if isinstance(p, Winograd | SplitWindows) else p
            for p in self.passes.passes
        )
        return replace(self.passes, passes=tuple(passes)).run(self.plan)

    def task(self, key: str, same: Sequence[_Convolution]) -> Task:
        """The task. same: all convolutions of the model that equal this one, itself included."""
        own = self.group.name
        kernels = [g.name for plan in self.forms.values() for g in plan.groups]
        names = (k.replace(own, one.group.name) for one in same for k in kernels)
        sources = dict.fromkeys(s for one in same for s in one.group.sources)
        buffers = (*self.group.reads, *self.plan.results)
        return Task(
            key,
            f"form of {own}",
            ListedSpace([Candidate(name, {}) for name in self.forms]),
            self.schedule,
            self.build,
            len(same),
            self.group.flops,
            sum(b.size * b.dtype.itemsize for b in buffers),
            tuple(sources),
            tuple(dict.fromkeys(names)),
            self.reference,
        )

    def schedule(self, candidate: Candidate) -> Point:
        """The schedule of the kernel that does most of the work of a form.

        Raises ScheduleError for a form that is not possible.
        """
        plan = self.forms.get(candidate.sketch)
        if plan is None or candidate.values:
            raise ScheduleError(
                f"the convolution cannot be computed as {candidate.key}",
                where=self.group.name,
            )
        most = max(plan.groups, key=lambda g: g.flops)
        signature = kernel_signature(most, plan.live[most])
        pairs = zip(signature.params, signature.values, strict=True)
        constants = {p for p, v in pairs if v in plan.data}
        program = signature.plain(), signature.computations, constants
        made = self.target.default_schedule(*program)
        return Point(made, (), candidate.sketch)

    def build(self, point: Point) -> bytes:
        """The artifact of all kernels of a form."""
        return as_bytes(self._model(self.forms[point.sketch]))

    def reference(self) -> bytes:
        """Inputs, and the verified results of the direct form.

        Forms round differently, so they may differ as tuned models may (`same_results`).
        """
        signature = kernel_signature(self.group, self.plan.live[self.group])
        model = self._model(self._formed(OneForm(DIRECT)))
        cases = unpack(reference(signature, self.plan.data, model))
        return pack(
            [replace(c, results=tuple(map(_widened, c.results))) for c in cases]
        )

    def _model(self, plan: Plan) -> CompiledModel:
        """The kernels of a form, one after the other."""
        compiler = KernelCompiler(self.target, self.target, None)
        built = []
        for group in plan.groups:
            signature = kernel_signature(group, plan.live[group])
            code = compiler.compile(signature, plan.data)
            built.append(BuiltGroup(group, signature, code))
        return alone(plan, built, self.target)


def _text(plan: Plan) -> str:
    """What the groups of a plan compute, but for names."""
    tensors = dict.fromkeys(b for g in plan.groups for b in (*g.reads, *g.writes))
    whole = [c for g in plan.groups for c in g.computations]
    sizes = [len(g.computations) for g in plan.groups]
    return f"{sizes}\n{canonical(whole, tuple(tensors))}"


def _widened(r: ReferenceResult) -> ReferenceResult:
    """A result that other forms may differ from by more."""
    finite = np.abs(r.whole[np.isfinite(r.whole)].astype(np.float64))
    bound = TOLERANCE[r.whole.dtype.name] * float(finite.max(initial=0.0))
    error = np.full(len(r.error), max(r.bound, bound))
    return replace(r, bound=max(r.bound, bound), error=error)
