"""How long a group of Computations will take as one kernel: a roofline of the cost model.

Parts with products take the cycles of their sketch's rule (`sketches/rules.py`), others those of
their elements (`sketches/element_time.py`); the kernel takes at least what its data takes to
arrive, and a call and a region of threads come on top. Unlike `estimated_cost`, which compares
forms of one thing, these numbers can be added up over a network: see `benchmarks.predictions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.compute.nodes import Computation
from tilewright.schedule.space.patterns import KernelPattern, classify, parts
from tilewright.targets.cpu.sketches.context import Context
from tilewright.targets.cpu.sketches.element_time import arrival, element_cycles
from tilewright.targets.cpu.sketches.rules import RULES
from tilewright.targets.cpu.sketches.traffic import products

# Patterns of products, whose rules count them.
PRODUCTS = {"block_scaled", "attention", "streaming_attention", "winograd"}


def predicted_time(computations: Sequence[Computation], at: Context) -> float:
    """Expected nanoseconds of one run of these as one kernel, on the threads that it gets."""
    costs, machine = at.costs, at.machine
    work = sum(_cycles(p, at) for p in _pieces(computations)) / machine.clock
    alone = max(work, arrival(computations, at)) + costs.call_ns
    if machine.cores == 1 or not costs.worth_sharing(alone):
        return alone
    return alone / machine.cores + costs.region_ns


def predicted_work(computations: Sequence[Computation], at: Context) -> float:
    """Expected nanoseconds of the arithmetic of these as one kernel, on one core, for comparing
    kernels that differ in their extents alone."""
    alone = replace(at, machine=replace(at.machine, cores=1))
    cycles = sum(RULES[p.name].cycles(p, alone) for p in _pieces(computations))
    return cycles / at.machine.clock


def predicted_given(elements: int, at: Context) -> float:
    """Expected nanoseconds of an operator's own kernel that produces this many elements."""
    alone = elements * at.costs.step_ns + at.costs.call_ns
    if at.machine.cores > 1 and at.costs.worth_sharing(alone):
        return alone / at.machine.cores + at.costs.region_ns
    return alone


def _pieces(computations: Sequence[Computation]) -> Sequence[KernelPattern]:
    pattern = classify(computations)
    return [pattern] if pattern.name != "plain" else list(parts(computations))


def _cycles(pattern: KernelPattern, at: Context) -> float:
    if pattern.name in PRODUCTS:
        return RULES[pattern.name].cycles(pattern, at)
    made = products(pattern, at) if pattern.name == "tiled" else None
    if made is None:
        return element_cycles(pattern, at)
    after = [pattern.epilogue] if pattern.epilogue else []
    return made + element_cycles(KernelPattern("map", tuple(after)), at)
