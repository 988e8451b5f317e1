"""How long a group of Computations will take as one kernel: a roofline of the cost model.

Each part of the kernel takes the its own cycles rule (`sketches/rules.py`), the kernel at least
what its data takes to arrive, and a call and a region of threads come on top. Unlike
`estimated_cost`, which compares forms of one thing, these numbers can be added up over a network.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.schedule.space.patterns import classify, parts
from tilewright.targets.cpu.sketches.context import Context
from tilewright.targets.cpu.sketches.rules import RULES


def predicted_time(
    computations: Sequence[Computation],
    constants: Collection[Buffer],
    at: Context,
) -> float:
    """Expected nanoseconds of one run of these as one kernel, on the threads that it gets."""
    costs, machine = at.costs, at.machine
    work = predicted_work(computations, at)
    made = dict.fromkeys(o.tensor for c in computations for o in c.outputs)
    read = {b for c in computations for b in c.inputs}.difference(made)
    inner = {b for c in computations for b in c.inputs if b in made}
    moved = costs.moving((*read, *(b for b in made if b not in inner)), constants)
    alone = max(work, moved) + costs.call_ns
    if machine.cores == 1 or not costs.worth_sharing(work):
        return alone
    return alone / machine.cores + costs.region_ns


def predicted_work(computations: Sequence[Computation], at: Context) -> float:
    """Expected nanoseconds of the arithmetic of these as one kernel, on one core."""
    pattern = classify(computations)
    pieces = [pattern] if pattern.name != "plain" else list(parts(computations))
    cycles = sum(RULES[p.name].cycles(p, at) for p in pieces)
    return cycles / at.machine.clock


def predicted_given(elements: int, at: Context) -> float:
    """Expected nanoseconds of an operator's own kernel that produces this many elements."""
    alone = elements * at.costs.step_ns + at.costs.call_ns
    if at.machine.cores > 1 and at.costs.worth_sharing(alone):
        return alone / at.machine.cores + at.costs.region_ns
    return alone
