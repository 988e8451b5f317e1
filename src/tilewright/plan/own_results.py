"""Results in separate memory: copies of inputs, constants and other results."""

from __future__ import annotations

from dataclasses import replace

from tilewright.base.names import fresh
from tilewright.compute.build import map_
from tilewright.expr.nodes import Buffer
from tilewright.plan.nodes import FusionGroup, Plan


def own_results(
    plan: Plan,
) -> Plan:
    """The plan where a step writes each result, and no two results are the same buffer.

    A result that is an input, a constant or an earlier result is copied at the end.
    """
    taken = {b.name for b in plan.buffers.values()}
    free = {b for step in plan.steps for b in step.writes}
    outputs, copies = [], []
    buffers = dict(plan.buffers)
    for v in plan.graph.outputs:
        b = plan.buffers.get(v)
        if b is not None and b not in free:
            v = replace(v)
            name = fresh(taken, f"{b.name}_result")
            made = Buffer(name, b.extents, b.dtype)
            copy = map_(name, made, lambda *i, b=b: b[i])
            copies.append(
                FusionGroup(
                    name,
                    (copy,),
                    sources=(v.name,),
                )
            )
            buffers[v] = b = made
        free -= {b}
        outputs.append(v)
    if not copies:
        return plan
    graph = replace(plan.graph, outputs=tuple(outputs))
    return replace(plan, graph=graph, steps=(*plan.steps, *copies), buffers=buffers)
