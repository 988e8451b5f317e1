"""Spaces of simulated machines with simulated time as cost: kernels, mappings, expansions.

They contain the choices of the machines' heuristics, so a search that tries those is never worse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, prod
from typing import Generic, TypeVar

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import UnsupportedError
from tilewright.compute.nodes import Computation
from tilewright.dataflow.evaluate import Evaluator, Method, applicable, makespan
from tilewright.dataflow.explore import groups_of
from tilewright.dataflow.graph import Volume
from tilewright.dataflow.lower import OperatorNetwork
from tilewright.dataflow.results import ResultStore
from tilewright.lift.nodes import Lambda
from tilewright.loops.nodes import Kernel
from tilewright.targets.base import Target
from tilewright.targets.npu import candidate as npu
from tilewright.targets.npu.asked import asked, forms_of
from tilewright.targets.npu.machine import NpuMachine
from tilewright.tune.base import Candidate, Space
from tilewright.tune.space.choice_space import ChoiceSpace
from tilewright.tune.space.parameter import Parameter
from tilewright.tune.space.parameter_space import ParameterSpace
from tilewright.tune.space.ranges import Set
from tilewright.tune.space.sketch_space import SketchSpace

S = TypeVar("S", bound=Space)


@dataclass(frozen=True, slots=True)
class Simulated(Generic[S]):
    """A space, and the cycles of each candidate; infinite if it does not fit."""

    space: S
    cost: Callable[[Candidate], float]


def kernels(
    target: Target, kernel: Kernel, computations: Sequence[Computation]
) -> Simulated[SketchSpace]:
    """The schedules of a kernel for a target with a simulator: VTA.

    Raises UnsupportedError for a target without one.
    """
    if type(target).simulated is Target.simulated:
        raise UnsupportedError(
            f"target {target.name!r} has no simulator",
            code="TW-TARGET",
            hint="measure its kernels",
        )
    space = SketchSpace(target.sketches(kernel, computations, ()))

    def cost(candidate: Candidate) -> float:
        cycles = target.simulated(space.schedule(candidate).schedule.kernel)
        return inf if cycles is None else cycles

    return Simulated(space, cost)


def mappings(
    program: Lambda, machine: NpuMachine
) -> Simulated[ChoiceSpace[npu.NpuCandidate]]:
    """The mappings of a Lift program onto a neural processor.

    Raises NPUError if no rule maps a part to its operators, InputError for ill-typed programs.
    """
    forms = forms_of(program)
    space = ChoiceSpace({"mapping": lambda ask: asked(forms, machine, ask)})

    def cost(candidate: Candidate) -> float:
        return space.made(candidate).result.cycles(machine)

    return Simulated(space, cost)


def expansions(
    net: OperatorNetwork,
    pes: int,
    wanted: Mapping[str, Sequence[str]] | None = None,
    *,
    volume: Volume = Volume.PART,
    methods: Sequence[Method] = tuple(Method),
) -> Simulated[ParameterSpace]:
    """The expansions of a network's operators, and the methods to schedule them on `pes` elements.

    wanted: expansions to try for a family or an operator. A parameter is named after the first of
    the operators that share it. Raises InputError for names that are not in the network.
    """
    groups = groups_of(net, wanted or {})
    parameters = [Parameter(g.stages[0], Set(*g.options)) for g in groups]
    schedules = Parameter("schedule by", Set(*map(str, methods)))
    space = ParameterSpace(*parameters, schedules)
    stages = [g.stages for g in groups]
    size = prod(len(g.options) for g in groups)
    evaluator = Evaluator(net, stages, volume, methods, ResultStore(), size)

    def cost(candidate: Candidate) -> float:
        values = candidate.values
        graph = evaluator.graph(tuple(values[p.name] for p in parameters))
        method = Method(values[schedules.name])
        if method not in applicable(graph.tasks, methods):
            return inf
        return makespan(graph, pes, method)

    return Simulated(space, cost)
