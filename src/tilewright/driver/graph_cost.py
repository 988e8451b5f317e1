"""The cost of a graph on a target, for the search over substitutions, from its plan after fusion.

    time       predicted seconds of all kernels (`Target.predicted_time`)
    measured   seconds of a run, compiled and timed
    flops      operations that the operators count
    bytes      that kernels read and write
    launches   kernels and host fallbacks

Costs can be combined with weights: `{"time": 1, "launches": 1e-6}`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from tilewright.base.arguments import NOT_NEGATIVE
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.base.text import listing
from tilewright.driver.compilation import Compilation, optimize, target_of
from tilewright.driver.options import Options
from tilewright.driver.random_inputs import random_array
from tilewright.driver.remembered import RecordedAnswers
from tilewright.graph.nodes import Graph
from tilewright.plan.nodes import FusionGroup, Plan, Step
from tilewright.runtime.executable import Executable
from tilewright.runtime.model import CompiledModel

# A host fallback runs a reference in Python; its overhead, without the time for its data.
HOST_SECONDS: Final = 50e-6
RUNS: Final = 9  # timed runs per measurement, whose median counts
NS: Final = 1e-9

TIME: Final[Mapping[str, float]] = {"time": 1.0}

OfPlan = Callable[[Plan, RecordedAnswers], float]
# Compiles a graph in order to measure it.
Build = Callable[[Graph, Options], CompiledModel]


def check_weights(weights: Mapping[str, float]) -> None:
    """Raise InputError for a cost that there is not, a weight below 0, or only weights of 0."""
    for name, weight in weights.items():
        if name not in COSTS:
            raise InputError(
                f"unknown cost {name!r}",
                hint=f"choose from {listing(COSTS)}",
            )
        if not NOT_NEGATIVE.holds(weight):
            raise InputError(
                f"the weight of {name!r} is {weight!r}",
                hint=f"give {NOT_NEGATIVE.expected}",
            )
    if not any(weights.values()):
        raise InputError(
            "every weight is 0", hint=f"give one of {listing(COSTS)} a weight"
        )


class GraphCost:
    """A cost of graphs for a target.

    build: compiles a graph; only the cost "measured" needs it. Raises InputError for invalid
    weights, and UnsupportedError for a target other than the host.
    """

    def __init__(
        self,
        options: Options,
        weights: Mapping[str, float],
        build: Build | None = None,
    ) -> None:
        check_weights(weights)
        self._options = replace(options, optimize="off")
        self._build = build
        self._weights = {n: w for n, w in weights.items() if w}
        self._compiling = Compilation.of(target_of(options), options)
        self._said = RecordedAnswers(self._compiling.host)
        if self._compiling.device is not None:
            raise UnsupportedError(
                f"target {options.target!r}: graphs can be searched only for the host",
                code="TW-TARGET",
                hint='use target="cpu", or optimize="off"',
            )

    def __call__(self, graph: Graph) -> float:
        names = set(self._weights)
        found = {}
        if names - {MEASURED}:
            plan = self._planned(graph)
            found = {n: OF_PLAN[n](plan, self._said) for n in names & set(OF_PLAN)}
        if MEASURED in names:
            found[MEASURED] = self._measured(graph)
        return sum(self._weights[n] * cost for n, cost in found.items())

    @property
    def data(self) -> float:
        """The cost of a byte that a substitution adds to the constants: only time has one."""
        byte = self._compiling.host.plan_costs.constant_byte_ns
        return self._weights.get("time", 0.0) * NS * byte

    @property
    def least(self) -> Callable[[Graph], float] | None:
        """`least_of`; None if no cost in use has a lower bound."""
        return self.least_of if WITH_LEAST & set(self._weights) else None

    def least_of(self, graph: Graph) -> float:
        """A rough lower bound of a graph's cost, however it is fused: only its sums and products.

        Maps are fused into other kernels. A search uses the bound to select graphs to examine.
        """
        plan = self._planned(graph)
        kept = [s for s in plan.steps if isinstance(s, FusionGroup) and not _is_map(s)]
        inner = replace(plan, steps=tuple(kept))
        names = WITH_LEAST & set(self._weights)
        return sum(
            self._weights[n] * OF_PLAN[n](inner, self._said) for n in sorted(names)
        )

    def _measured(self, graph: Graph) -> float:
        assert self._build is not None, "a measured cost needs a build"
        model = self._build(graph, self._options)
        return measured(model, graph, self._options.threads)

    def _planned(self, graph: Graph) -> Plan:
        host = self._compiling.host
        optimized = optimize(graph, self._options, host)
        return self._compiling.planned(optimized, asked=self._said.questions)


def _is_map(group: FusionGroup) -> bool:
    return group.kernel is None and all(c.is_map for c in group.computations)


def predicted(plan: Plan, said: RecordedAnswers) -> float:
    """The predicted seconds of all steps, in sequence."""
    return sum(_seconds(step, plan, said) for step in plan.steps)


def _seconds(step: Step, plan: Plan, said: RecordedAnswers) -> float:
    if not isinstance(step, FusionGroup):
        return HOST_SECONDS
    if step.kernel is not None:
        return NS * said.predicted_given(sum(b.size for b in step.kernel.outputs))
    return NS * said.predicted_time(step.computations, plan.data)


def measured(model: CompiledModel, graph: Graph, threads: int | None) -> float:
    """The median seconds of RUNS runs on random inputs, after a warm-up run."""
    import statistics  # which loads more than all of this module

    exe = Executable(model, threads=threads)
    inputs = {
        v.name: random_array(v.name, v.dtype, v.extents, 0)
        for v in graph.inputs
        if v.dtype is not None
    }
    exe(inputs)
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        exe(inputs)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _flops(plan: Plan, said: RecordedAnswers) -> float:
    return float(sum(s.flops for s in plan.steps if isinstance(s, FusionGroup)))


def _bytes(plan: Plan, said: RecordedAnswers) -> float:
    total = 0
    for step in plan.steps:
        live = plan.live[step] if isinstance(step, FusionGroup) else set(step.writes)
        written = [b for b in step.writes if b in live]
        total += sum(b.size * b.dtype.itemsize for b in (*step.reads, *written))
    return float(total)


def _launches(plan: Plan, said: RecordedAnswers) -> float:
    return float(len(plan.steps))


MEASURED: Final = "measured"
OF_PLAN: Final[Mapping[str, OfPlan]] = {
    "time": predicted,
    "flops": _flops,
    "bytes": _bytes,
    "launches": _launches,
}
# The costs that grow with the work of each operator, however it is fused.
WITH_LEAST: Final = frozenset({"time", "flops"})
COSTS: Final = (*OF_PLAN, MEASURED)
