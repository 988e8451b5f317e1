"""Plans a graph for a target: makes kernels of Computations and, once compiled, places buffers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from tilewright.base import events, flags
from tilewright.compute.nodes import Computation
from tilewright.driver.built import BuiltControl, BuiltGroup, BuiltStep
from tilewright.expr.nodes import Buffer
from tilewright.graph.nodes import Graph
from tilewright.ir.passes import Pipeline
from tilewright.plan.lower import lower
from tilewright.plan.nodes import Branch, Loop, Plan, Step
from tilewright.plan.normalize import merged, normalized
from tilewright.plan.passes.memory import PlanMemory
from tilewright.plan.passes.partition import Refuses
from tilewright.plan.pipeline import plan_pipeline
from tilewright.plan.questions import Questions
from tilewright.plan.verify_memory import verify_arena
from tilewright.targets.base import Target

Observer = Callable[[str, Plan], None]
# Called with the lowered plan, and the passes that are about to rewrite it.
Lowered = Callable[[Plan, Pipeline[Plan]], None]


def make_plan(
    graph: Graph,
    target: Target,
    math: str = "default",
    observe: Observer | None = None,
    refuses: Mapping[str, Refuses] = MappingProxyType({}),
    limit: int | None = None,
    fusion: bool = True,
    fused: Mapping[str, Questions] = MappingProxyType({}),
    asked: Questions | None = None,
    lowered: Lowered | None = None,
) -> Plan:
    """The graph as fusion groups that suit the target, and host fallbacks.

    refuses: by device other than the host, why it rejects a group; it runs the other groups. limit:
    the bytes that a call may need; results are recomputed if that keeps the plan within the limit.
    fusion, fused: as for `plan_pipeline`. asked: answers to use instead of the target's. observe:
    called with the name and the plan after lowering and after each pass. lowered: called before
    the first pass. Verified after each pass under TILEWRIGHT_DEBUG.
    """

    def nested(body: Graph) -> Plan:
        return make_plan(
            body, target, math, None, limit=limit, fusion=fusion, asked=asked
        )

    answers = asked or questions(target)
    few = answers.costs.few_channels
    with events.span("lower"):
        plan = lower(graph, nested=nested, blocks=target.blocks, few=few)
    if observe is not None:
        observe("lower", plan)
    pipeline = plan_pipeline(
        answers,
        math,
        refuses,
        limit=limit,
        fusion=fusion,
        fused=fused,
    )
    if lowered is not None:
        lowered(plan, pipeline)
    return pipeline.run(plan, check=flags.DEBUG.get(), observe=observe)


def place_buffers(
    plan: Plan, steps: Iterable[BuiltStep], observe: Observer | None = None
) -> Plan:
    """The plan with places for its buffers, as its kernels allow.

    Verified under TILEWRIGHT_DEBUG. observe: as for `make_plan`.
    """
    pipeline = Pipeline("memory", (_memory(steps),), verify_arena)
    return pipeline.run(_inside(plan, steps), check=flags.DEBUG.get(), observe=observe)


def _memory(steps: Iterable[BuiltStep], staying: Sequence[Buffer] = ()) -> PlanMemory:
    over = {s.stage: s.over for s in steps if isinstance(s, BuiltGroup)}
    return PlanMemory(lambda group: over.get(group, ()), staying=tuple(staying))


def _inside(plan: Plan, steps: Iterable[BuiltStep]) -> Plan:
    """The plan with places for the buffers inside its loops and branches."""
    built = {s.stage: s for s in steps if isinstance(s, BuiltControl)}

    def placed(step: Step) -> Step:
        if not isinstance(step, Loop | Branch):
            return step
        pairs = zip(step.bodies, built[step].bodies, strict=True)
        return step.with_bodies(
            [
                _memory(inner, staying(step, body)).run(_inside(body, inner))
                for body, inner in pairs
            ]
        )

    return plan.with_steps(map(placed, plan.steps)) if built else plan


def staying(step: Loop | Branch, body: Plan) -> list[Buffer]:
    """Buffers that stay in the arena of a body throughout: a loop's counter, and its results."""
    first = body.graph.inputs[:1] if isinstance(step, Loop) else ()
    made = [b for b in body.results if b not in body.given]
    return [*(body.buffers[v] for v in first), *made]


def questions(target: Target) -> Questions:
    """The target's answers to the questions of passes about kernels."""

    def estimated_cost(
        group: Sequence[Computation], constants: Collection[Buffer] = ()
    ) -> float | None:
        return target.estimated_cost(*merged(group, constants))

    def is_profitable(group: Sequence[Computation]) -> bool:
        return target.is_profitable(normalized(group)[0])

    return Questions(estimated_cost, is_profitable, target.plan_costs)
