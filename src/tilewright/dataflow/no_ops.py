"""Operators that move nothing: their result has the elements of their input, in the same order.

Reshape, Flatten, Squeeze and a transposition of axes with extent 1 only change the indexing of a
tensor. They take no time and are not tasks: readers of the result read the input.
"""

from __future__ import annotations

from tilewright.compute.nodes import CC
from tilewright.dataflow.parts import reads_in_order, writes_in_order
from tilewright.expr.nodes import Buffer, Load
from tilewright.plan.nodes import FusionGroup, Plan, Step


def without_copies(plan: Plan) -> tuple[Plan, dict[Buffer, Buffer]]:
    """The plan without such groups, and the tensor that each of their results aliases."""
    writers: dict[Buffer, int] = {}
    for step in plan.steps:
        for b in step.writes:
            writers[b] = writers.get(b, 0) + 1
    same: dict[Buffer, Buffer] = {}
    kept: list[Step] = []
    for step in plan.steps:
        found = _copied(step)
        if found is None or writers[step.writes[0]] > 1:
            kept.append(step)
        else:
            same[step.writes[0]] = same.get(found, found)
    return plan.with_steps(kept), same


def _copied(step: Step) -> Buffer | None:
    """The tensor whose elements a group writes in order, if it does nothing else."""
    if not isinstance(step, FusionGroup):
        return None
    if len(step.computations) != 1:
        return None
    (c,) = step.computations
    if len(c.outputs) != 1:
        return None
    if any(d.combine is not CC for d in c.dims):
        return None
    value = c.outputs[0].value
    to = c.outputs[0].tensor
    if not isinstance(value, Load):
        return None
    if value.buffer.dtype is not to.dtype:
        return None
    whole = value.buffer.size == to.size
    in_order = whole and writes_in_order(c) and reads_in_order(c, value.buffer)
    return value.buffer if in_order else None
