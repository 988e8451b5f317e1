"""Makes an open plan from the plans of several sizes, if they differ only in numbers.

A number that differs becomes a sum of terms (`size_terms`: sizes, and floors of them), through the
first plans. A constant that differs becomes the leading corner of the largest one: the positions or
the mask of the longest sequence begin with those of a shorter one. This is a guess: `equal` checks
whether the open plan at some sizes equals their own plan, and only sizes that passed the check may
run the open plan's code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.base.errors import VerifyError
from tilewright.compute.canonical import canonical
from tilewright.driver.ranges.plan_match import PlanMatch, programs
from tilewright.driver.ranges.plan_merger import PlanMerger
from tilewright.driver.ranges.refusals import differs, other_steps
from tilewright.driver.ranges.size_products import known_products
from tilewright.driver.ranges.size_terms import Basis, Extents, SizeTerm, Terms
from tilewright.expr.nodes import (
    INDEX,
    Buffer,
    Var,
)
from tilewright.graph.nodes import Graph, Value
from tilewright.plan.nodes import FusionGroup, OpenExtent, Plan, Step
from tilewright.plan.open_extents import Resized, at, step_of
from tilewright.plan.verify import verify


def generalize(
    plans: Sequence[Plan],
    points: Sequence[Extents],
    graph: Graph,
    bounds: Mapping[str, tuple[int, int]],
    terms: Terms | None = None,
    extents: Callable[[Extents], Extents] = dict,
) -> Plan:
    """The open plan whose plans at `points` are `plans`.

    points: one, then for each dimension as many as it has terms, which differ from the first only
    in that dimension, then any others; constants that differ are corners of the last one's. graph:
    its inputs name the dimensions. bounds: the least and the greatest value of each dimension.
    terms: that occur for each dimension; None: the dimension itself. extents: of sizes, as
    `RangedBuilder` has them. Raises UnsupportedError naming the step or tensor in which the plans
    differ by more than numbers.
    """
    sizes = {name: Var(name, INDEX) for name in bounds}
    basis = Basis.of(points, terms or {name: (SizeTerm(name),) for name in bounds})
    if any(len(p.steps) != len(plans[0].steps) for p in plans):
        raise other_steps(plans, [*map(extents, points)], graph.name)
    products = known_products(basis, _shapes(plans))
    shown = [*map(extents, points)]
    merger = PlanMerger(basis, sizes, products, shown=shown)
    ends = [(*p.graph.inputs, *used_constants(p), *p.graph.outputs) for p in plans]
    if len({len(found) for found in ends}) > 1:
        raise differs(f"plan {graph.name}", "the number of constants")
    values: dict[Value, Buffer] = {}
    known: dict[Value, Value] = {}
    constants: dict[Value, Any] = {}
    for found in zip(*ends, strict=True):
        merger.where = f"tensor {found[0].name!r}"
        pairs = zip(plans, found, strict=True)
        buffers = tuple(_buffer_of(p, v) for p, v in pairs)
        if found[0] in plans[0].graph.constants:
            arrays = [p.graph.constants[v] for p, v in zip(plans, found, strict=True)]
            constants[found[0]] = _constant(merger, buffers, arrays)
        b = merger.buffer(buffers)
        shape = tuple(e if isinstance(e, int) else str(e) for e in b.extents)
        value = known.setdefault(found[0], replace(found[0], shape=shape))
        values[value] = b
    steps = tuple(merger.step(s) for s in zip(*(p.steps for p in plans), strict=True))
    first = plans[0].graph
    inputs, outputs = (
        tuple(known[v] for v in ends) for ends in (first.inputs, first.outputs)
    )
    constants = {known[v]: a for v, a in constants.items()}
    data = {values[v]: a for v, a in constants.items()}
    opened = tuple(
        OpenExtent(
            sizes[name],
            *bounds[name],
            _source(values, inputs, sizes[name]),
            points[0][name],
        )
        for name in bounds
    )
    made = Graph(first.name, inputs, outputs, (), constants)
    return Plan(made, steps, values, data, open=opened)


def _shapes(plans: Sequence[Plan]) -> Iterator[list[tuple[int, ...]]]:
    """The shapes, in all plans, of each tensor that steps read or write."""
    for steps in zip(*(p.steps for p in plans), strict=True):
        for tensors in zip(*((*s.reads, *s.writes) for s in steps), strict=False):
            yield [b.shape for b in tensors]


def equal(plan: Plan, extents: Extents, fixed: Plan) -> bool:
    """Whether the open plan at these extents equals the other plan, except for names."""
    both = (plan, fixed)
    if not all(isinstance(s, FusionGroup) for p in both for s in p.steps):
        return False
    constants = [used_constants(p) for p in both]
    ends = [
        (p.graph.inputs, used, p.graph.outputs)
        for p, used in zip(both, constants, strict=True)
    ]
    lengths = {
        (len(p.steps), *map(len, end)) for p, end in zip(both, ends, strict=True)
    }
    if len(lengths) > 1:
        return False
    sizes = {e.size: extents[e.size.name] for e in plan.open}
    resized = Resized(sizes, _cut(plan, fixed))
    match = PlanMatch(resized)
    for mine, others in zip(*ends, strict=True):
        for v, w in zip(mine, others, strict=True):
            if not match.tensor(plan.buffers[v], fixed.buffers[w]):
                return False
    if not all(map(match.group, plan.groups, fixed.groups)):
        return False
    for v, w in zip(*constants, strict=True):
        part = resized.array(plan.buffers[v], plan.graph.constants[v])
        whole = fixed.graph.constants[w]
        if part.shape != whole.shape:
            return False
        if not is_corner(part, whole):
            return False
    return True


def _constant(
    merger: PlanMerger, found: tuple[Buffer, ...], arrays: Sequence[Any]
) -> Any:
    """The array of a constant; if they differ, the last one, if all are corners of it."""
    first, *_, last = *arrays, arrays[-1]
    if all(a is first for a in arrays) or not all(is_corner(a, last) for a in arrays):
        return first
    b = found[-1]
    merger.put(found, Buffer(merger.name(found[0]), b.shape, b.dtype, b.scope))
    return last


def is_corner(part: Any, whole: Any) -> bool:
    """Whether `part` equals the leading corner of `whole`, bit for bit."""
    if part.dtype != whole.dtype or part.ndim != whole.ndim:
        return False
    corner = whole[tuple(map(slice, part.shape))]
    if part is whole or corner.shape != part.shape:
        return part is whole
    return np.array_equal(_bits(corner), _bits(part))


def _bits(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bits of each element as a number; of one without such a number, as bytes."""
    if a.dtype.kind != "O" and a.dtype.itemsize in (1, 2, 4, 8):
        return a.view(f"u{a.dtype.itemsize}")
    return np.frombuffer(a.tobytes(), np.uint8)


def _cut(plan: Plan, fixed: Plan) -> dict[Buffer, Buffer]:
    """The constants of the open plan that have another shape in the other plan, in that shape."""
    copies = {}
    for v, w in zip(used_constants(plan), used_constants(fixed), strict=False):
        b = plan.buffers[v]
        shape = fixed.buffers[w].shape
        # Constants of another rank differ, and so do the plans.
        if b.static and b.shape != shape and len(b.shape) == len(shape):
            copies[b] = Buffer(b.name, shape, b.dtype, b.scope)
    return copies


def form_of(plan: Plan) -> tuple[Any, ...]:
    """What plans that can be merged have in common: numbers of Computations and constants."""
    groups = [(len(g.computations), g.kernel is None) for g in plan.groups]
    return (len(plan.steps), *groups, len(used_constants(plan)))


def difference(plan: Plan, extents: Extents, fixed: Plan) -> str:
    """The name of the first step in which a plan at some sizes differs from the open plan."""
    try:
        sizes = {e.size: extents[e.size.name] for e in plan.open}
        here = at(plan, sizes, _cut(plan, fixed))
        verify(here)
    except VerifyError as error:
        return str(error)
    for mine, other in zip(here.steps, fixed.steps, strict=False):
        pair = [_step_text(s) for s in (mine, other)]
        if len(set(pair)) > 1:
            return f"step {mine.name}"
    return "the steps" if len(here.steps) != len(fixed.steps) else "a constant"


def _step_text(step: Step) -> str:
    if not isinstance(step, FusionGroup):
        return step.name
    return canonical(programs(step), (*step.reads, *step.writes))


def used_constants(plan: Plan) -> list[Value]:
    """The constants that are read by a step or are results, in the order of their first use.

    The order of the graph depends on sizes: typing folds small constants before large ones fold.
    """
    reads = (b for s in plan.steps for b in s.reads)
    first = {b: n for n, b in enumerate(dict.fromkeys((*reads, *plan.results)))}
    buffers = {v: plan.buffers.get(v) for v in plan.graph.constants}
    used = [v for v, b in buffers.items() if b in first]
    return sorted(used, key=lambda v: first[plan.buffers[v]])


def _buffer_of(plan: Plan, v: Value) -> Buffer:
    if v not in plan.buffers:
        counted = v.shape is not None and not all(isinstance(d, int) for d in v.shape)
        data = "its extents depend on data, and such a result is cut to its count apart"
        raise differs(f"tensor {v.name!r}", data if counted else "it has no memory")
    return plan.buffers[v]


def _source(
    values: Mapping[Value, Buffer], inputs: Sequence[Value], size: Var
) -> tuple[Value, int]:
    for v in inputs:
        for axis, extent in enumerate(values[v].extents):
            if step_of(extent, size) is not None:
                return v, axis
    raise differs(f"size {size.name}", "it is not an extent of any input")
