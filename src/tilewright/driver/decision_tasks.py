"""The decisions of a model's plan as tasks of the tuner.

A task has a candidate for each alternative of a site that is possible and differs. Its program is
all kernels that the plan makes of the site, with their default schedules, one after the other, so
that its time is the sum of theirs, with the copies that an alternative needs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError
from tilewright.compute.canonical import canonical
from tilewright.driver.built import BuiltGroup
from tilewright.driver.chosen_decisions import key_of_decision
from tilewright.driver.compile_lock import exclusive
from tilewright.driver.kernels import KernelCompiler
from tilewright.driver.options import Options
from tilewright.driver.reference import reference
from tilewright.driver.same_results import TOLERANCE
from tilewright.driver.stages import prepared
from tilewright.driver.tasks import alone, as_bytes
from tilewright.graph.nodes import Graph, Value
from tilewright.ir.passes import Pipeline
from tilewright.plan.decisions import (
    BY_ESTIMATE,
    Decision,
    OneAlternative,
    PlanChoice,
    PlanSite,
    SiteSurvey,
)
from tilewright.plan.nodes import Plan
from tilewright.plan.normalize import kernel_signature
from tilewright.runtime.model import CompiledModel
from tilewright.schedule.space import Point
from tilewright.targets.base import Target
from tilewright.tune.base import Candidate, Task
from tilewright.tune.measure.reference import ReferenceResult, pack, unpack
from tilewright.tune.space.listed import ListedSpace

if TYPE_CHECKING:
    from tilewright.driver.keywords import CompileOptions

Array = np.ndarray[Any, Any]


def decision_tasks(
    source: Any,
    example_inputs: Sequence[Any] = (),
    *,
    dims: Mapping[str, int] | None = None,
    **options: Unpack[CompileOptions],
) -> list[Task]:
    """A task for each distinct site of the host's plan that has several alternatives.

    source, example_inputs, dims, options: as for `tilewright.compile`. The default is the
    alternative that the target's estimate chooses. Of equal sites, `calls` is the number. Raises
    the errors of `compile`.
    """
    chosen = Options.of(options)
    with exclusive():
        graph, compiling = prepared(source, example_inputs, dims, chosen)
        passes: list[Pipeline[Plan]] = []
        survey = SiteSurvey()
        compiling.planned(
            graph,
            lowered=lambda _, pipeline: passes.append(pipeline),
            choice=survey,
        )
        (pipeline,) = passes
        sites: dict[str, dict[PlanSite, _Undecided]] = {}
        for decision, site in survey.asked:
            key = key_of_decision(decision, site, compiling.host, chosen).text
            made = _Undecided(decision, site, pipeline, compiling.host)
            # A pass may ask again, as may the next one that decides the same.
            same = sites.setdefault(key, {})
            if not any(s.place == site.place for s in same):
                same[site] = made
        return [
            same[0].task(key, same)
            for key, same in ((key, [*found.values()]) for key, found in sites.items())
            if len(same[0].plans) > 1
        ]


def _only(site: PlanSite) -> Plan:
    """The plan of one site, whose inputs and outputs are those of its groups."""
    reads, writes = site.whole.reads, site.whole.writes
    outputs = [b for b in writes if b in site.live]
    data = {b: site.data[b] for b in reads if b in site.data}
    inputs = [b for b in reads if b not in data]
    values = {b: Value(b.name, b.dtype, b.shape) for b in (*inputs, *outputs)}
    given, results = ([values[b] for b in part] for part in (inputs, outputs))
    graph = Graph(site.whole.name, tuple(given), tuple(results), ())
    return Plan(graph, site.groups, {v: b for b, v in values.items()}, data)


@dataclass(frozen=True)
class _Undecided:
    """A site before it is decided. passes: of the whole plan."""

    decision: Decision
    site: PlanSite
    passes: Pipeline[Plan]
    target: Target

    @cached_property
    def plans(self) -> dict[str, Plan]:
        """The plan of each alternative that is possible and differs; the default first."""
        default = self._decided(BY_ESTIMATE)
        found: dict[str, tuple[str, Plan]] = {}
        for name in self.decision.alternatives:
            choice = OneAlternative(self.decision, self.site, name)
            plan = self._decided(choice)
            if choice.possible:
                found.setdefault(_text(plan), (name, plan))
        usual = found.pop(_text(default))
        return dict([usual, *found.values()])

    def _decided(self, choice: PlanChoice) -> Plan:
        """The plan after the passes that make this decision, and those after them."""
        passes = self.passes.passes
        decides = [getattr(p, "decides", None) for p in passes]
        rest: Any = passes[decides.index(self.decision) :]
        chosen = (
            replace(p, choice=choice) if hasattr(p, "decides") else p for p in rest
        )
        return replace(self.passes, passes=tuple(chosen)).run(_only(self.site))

    def task(self, key: str, same: Sequence[_Undecided]) -> Task:
        """The task. same: all sites of the model that equal this one, itself included."""
        whole = self.site.whole
        kernels = [g.name for plan in self.plans.values() for g in plan.groups]
        names = (k for one in same for k in self._renamed(kernels, one.site))
        sources = dict.fromkeys(s for one in same for s in one.site.whole.sources)
        buffers = (*whole.reads, *(b for b in whole.writes if b in self.site.live))
        return Task(
            key,
            f"{self.decision.name} of {whole.name}",
            ListedSpace([Candidate(name, {}) for name in self.plans]),
            self.schedule,
            self.build,
            len(same),
            whole.flops,
            sum(b.size * b.dtype.itemsize for b in buffers),
            tuple(sources),
            tuple(dict.fromkeys(names)),
            self.reference,
        )

    def _renamed(self, kernels: Sequence[str], other: PlanSite) -> list[str]:
        """Names of this site's kernels as those of an equal site."""
        pairs = zip(self.site.groups, other.groups, strict=True)
        of = {a.name: b.name for a, b in pairs}
        longest = sorted(of, key=len, reverse=True)
        own = re.compile("|".join(map(re.escape, longest)))
        return [own.sub(lambda found: of[found[0]], k) for k in kernels]

    def schedule(self, candidate: Candidate) -> Point:
        """The schedule of the kernel that does most of the work of an alternative.

        Raises ScheduleError for one that is not possible.
        """
        plan = self.plans.get(candidate.sketch)
        if plan is None or candidate.values:
            raise ScheduleError(
                f"it cannot be computed as {candidate.key}",
                where=self.site.whole.name,
            )
        most = max(plan.groups, key=lambda g: g.flops)
        signature = kernel_signature(most, plan.live[most])
        pairs = zip(signature.params, signature.values, strict=True)
        constants = {p for p, v in pairs if v in plan.data}
        program = signature.plain(), signature.computations, constants
        made = self.target.default_schedule(*program)
        return Point(made, (), candidate.sketch)

    def build(self, point: Point) -> bytes:
        """The artifact of all kernels of an alternative."""
        return as_bytes(self._model(self.plans[point.sketch]))

    def reference(self) -> bytes:
        """Inputs, and the verified results of the plain groups, before any decision.

        Alternatives round differently, so they may differ as tuned models may (`same_results`).
        """
        signature = kernel_signature(self.site.whole, self.site.live)
        plain = _only(self.site)
        cases = unpack(reference(signature, plain.data, self._model(plain)))
        return pack(
            [replace(c, results=tuple(map(_widened, c.results))) for c in cases]
        )

    def _model(self, plan: Plan) -> CompiledModel:
        """The kernels of a plan, one after the other."""
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
