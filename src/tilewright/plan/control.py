"""From a graph's closed Loops and Ifs to steps with nested plans."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tilewright.base.errors import CompileError
from tilewright.base.names import fresh
from tilewright.expr.nodes import Buffer
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.bounded_control import IF, LOOP
from tilewright.plan.nodes import Branch, Control, Loop, Plan

CONTROL = frozenset((IF, LOOP))
Nested = Callable[[Graph], Plan]  # makes the plan of a body


def control(op: Operation, buffers: Mapping[Value, Buffer], nested: Nested) -> Control:
    """The step of a closed Loop or If whose operands have buffers.

    Its operation is the original one around the graphs of the nested plans.
    """
    reads = [buffers[v] for v in op.inputs if v is not None]
    writes = tuple(buffers[v] for v in op.outputs if v is not None)
    if op.qualified == IF:
        names = ("then_branch", "else_branch")
        then, other = (_plan(op, own_results(op.attributes[n]), nested) for n in names)
        known = _around(op, dict(zip(names, (then, other), strict=True)))
        return Branch(known, then, other, reads[0], tuple(reads[1:]), writes)
    count = int(op.attributes["states"])
    body: Graph = op.attributes["body"]
    made = _plan(
        op,
        own_results(body, body.inputs[1 : 1 + count]),
        nested,
    )
    return Loop(
        _around(op, {"body": made}),
        made,
        trips=reads[0],
        going=reads[1],
        initial=tuple(reads[2 : 2 + count]),
        taken=tuple(reads[2 + count :]),
        count=writes[0],
        states=writes[1 : 1 + count],
        stacked=writes[1 + count :],
    )


def _around(op: Operation, plans: Mapping[str, Plan]) -> Operation:
    graphs = {name: plan.graph for name, plan in plans.items()}
    return replace(op, attributes={**op.attributes, **graphs})


def _plan(op: Operation, body: Graph, nested: Nested) -> Plan:
    made = nested(body)
    if made.host_fallbacks:
        raise CompileError(
            f"{made.host_fallbacks[0].name} has no native code inside a loop or branch",
            where=f"node {op.label!r}",
            hint="Please report it, with the model",
        )
    return made


def own_results(body: Graph, states: Sequence[Value] = ()) -> Graph:
    """The body with a separate value for each output that no operator writes.

    A result is stored while others are still being read. State k may be returned unchanged as
    result k + 1 only; another state, an input, or a value returned twice is copied first.
    """
    taken = {v.name for v in body.values}
    outputs: list[Value] = []
    extra: list[Operation] = []
    for n, v in enumerate(body.outputs):
        same = 0 < n <= len(states) and states[n - 1] is v
        if not same and (v not in body.producers or v in outputs):
            copy = replace(v, name=fresh(taken, f"{v.name}/result"))
            extra.append(
                Operation("Identity", (v,), (copy,), version=21, name=copy.name)
            )
            v = copy
        outputs.append(v)
    return body.with_operations((*body.operations, *extra), outputs=outputs)
