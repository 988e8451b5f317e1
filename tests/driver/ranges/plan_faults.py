"""Plans with one thing changed, and whether plans are equal as told by the text of all of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.base.dtypes import float32, float64
from tilewright.compute.canonical import canonical
from tilewright.compute.nodes import CC, PW, Computation, Output
from tilewright.compute.reducer import reducer
from tilewright.driver.ranges.generalize import _cut, is_corner, used_constants
from tilewright.driver.ranges.plan_match import programs
from tilewright.expr import nodes as e
from tilewright.expr.nodes import Binary, Buffer, Const, Expr, Load, Select
from tilewright.ir.node import postorder, substitute
from tilewright.plan.nodes import FusionGroup, Plan
from tilewright.plan.open_extents import at

# What a fault makes; None where the plan has no place for it.
Changed = Computation | None
Fault = Callable[[Computation, Plan, random.Random], Changed]


def have_one_text(plan: Plan, extents: Mapping[str, int], fixed: Plan) -> bool:
    """Whether an open plan made for the sizes has the text of the other plan, and its constants."""
    sizes = {open_.size: extents[open_.size.name] for open_ in plan.open}
    here = at(plan, sizes, _cut(plan, fixed))
    mine, others = (
        [p.graph.constants[v] for v in used_constants(p)] for p in (here, fixed)
    )
    if _text(here) != _text(fixed) or len(mine) != len(others):
        return False
    pairs = zip(mine, others, strict=True)
    return all(a.shape == b.shape and is_corner(a, b) for a, b in pairs)


def _text(plan: Plan) -> str:
    graph = plan.graph
    known = (*graph.inputs, *used_constants(plan), *graph.outputs)
    found = [program for g in plan.groups for program in programs(g)]
    counts = [len(g.computations) for g in plan.groups]
    text = canonical(found, [plan.buffers[v] for v in known])
    return f"{counts} {len(graph.inputs)}\n{text}"


def _found(c: Computation, kind: type[Expr] | tuple[type[Expr], ...]) -> list[Any]:
    """The nodes of a kind in values and indices."""
    roots = (root for o in c.outputs for root in (*o.index, o.value))
    nodes = dict.fromkeys(n for root in roots for n in postorder(root))
    return [n for n in nodes if isinstance(n, kind)]


def _with(c: Computation, old: Any, other: Callable[[Any], Expr]) -> Changed:
    """The Computation with another expression in place of one, everywhere."""
    new = None if old is None else other(old)
    if new is None or new is old:
        return None
    outputs = tuple(
        Output(
            o.tensor,
            tuple(substitute(i, {old: new}) for i in o.index),
            substitute(o.value, {old: new}),
        )
        for o in c.outputs
    )
    return replace(c, outputs=outputs)


def _one(found: Sequence[Any], r: random.Random) -> Any:
    return r.choice(found) if found else None


def a_number(c: Computation, p: Plan, r: random.Random) -> Changed:
    numbers = [n for n in _found(c, Const) if not isinstance(n.value, bool | complex)]
    old = _one(numbers, r)
    return _with(c, old, lambda n: Const(n.value + 1, n.type))


def a_sign(c: Computation, p: Plan, r: random.Random) -> Changed:
    old = _one([n for n in _found(c, Const) if n.type.is_float], r)
    return _with(c, old, lambda n: Const(-n.value, n.type))


def an_operator(c: Computation, p: Plan, r: random.Random) -> Changed:
    others: dict[type[Expr], type[Binary]] = {
        e.Add: e.Sub,
        e.Sub: e.Add,
        e.Mul: e.Add,
        e.Div: e.Mul,
        e.Min: e.Max,
        e.Max: e.Min,
        e.FloorDiv: e.Mod,
        e.Mod: e.FloorDiv,
    }
    old = _one(_found(c, tuple(others)), r)
    return _with(c, old, lambda n: others[type(n)](n.lhs, n.rhs))


def an_order_of_operands(c: Computation, p: Plan, r: random.Random) -> Changed:
    old = _one([n for n in _found(c, Binary) if n.lhs is not n.rhs], r)
    return _with(c, old, lambda n: type(n)(n.rhs, n.lhs))


def a_bound(c: Computation, p: Plan, r: random.Random) -> Changed:
    old = _one(_found(c, (e.Lt, e.Le)), r)
    return _with(c, old, lambda n: (e.Le if type(n) is e.Lt else e.Lt)(n.lhs, n.rhs))


def a_guard(c: Computation, p: Plan, r: random.Random) -> Changed:
    old = _one(_found(c, Select), r)
    return _with(c, old, lambda n: r.choice((n.then, n.otherwise)))


def a_tensor_that_is_read(c: Computation, p: Plan, r: random.Random) -> Changed:
    def other(old: Load) -> Expr:
        alike = [
            b
            for b in p.buffers.values()
            if (b.dtype, len(b.extents)) == (old.dtype, len(old.index))
        ]
        return Load(r.choice([*alike, old.buffer]), old.index)

    return _with(c, _one(_found(c, Load), r), other)


def an_index(c: Computation, p: Plan, r: random.Random) -> Changed:
    def other(old: Load) -> Expr:
        n = r.randrange(len(old.index))
        index = (*old.index[:n], old.index[n] + 1, *old.index[n + 1 :])
        return Load(old.buffer, index)

    return _with(c, _one([n for n in _found(c, Load) if n.index], r), other)


def a_rounding(c: Computation, p: Plan, r: random.Random) -> Changed:
    first, *more = c.outputs
    if first.value.dtype is not float32:
        return None
    value = first.value.astype(float64).astype(float32)
    return replace(c, outputs=(replace(first, value=value), *more))


def variables(c: Computation, p: Plan, r: random.Random) -> Changed:
    """Two exchanged, in the value alone."""
    if len(c.dims) < 2:
        return None
    one, two = (d.var for d in r.sample(c.dims, 2))
    first, *more = c.outputs
    value = substitute(first.value, {one: two, two: one})
    if value is first.value:
        return None
    return replace(c, outputs=(replace(first, value=value), *more))


def an_extent(c: Computation, p: Plan, r: random.Random) -> Changed:
    if not c.dims:
        return None
    n = r.randrange(len(c.dims))
    changed = replace(c.dims[n], size=c.dims[n].extent + 1)
    return replace(c, dims=(*c.dims[:n], changed, *c.dims[n + 1 :]))


def an_order_of_dimensions(c: Computation, p: Plan, r: random.Random) -> Changed:
    return replace(c, dims=c.dims[::-1]) if len(c.dims) > 1 else None


def how_a_dimension_combines(c: Computation, p: Plan, r: random.Random) -> Changed:
    if not c.dims:
        return None
    first, *more = c.dims
    other = PW if first.combine == CC else CC
    return replace(c, dims=(replace(first, combine=other), *more))


def a_reducer(c: Computation, p: Plan, r: random.Random) -> Changed:
    if c.reducer is None or len(c.reducer.dtypes) > 1:
        return None
    name = "mul" if c.reducer.name != "mul" else "add"
    return replace(c, reducer=reducer(name, c.reducer.dtypes[0]))


def whether_it_commutes(c: Computation, p: Plan, r: random.Random) -> Changed:
    if c.reducer is None:
        return None
    other = replace(c.reducer, commutative=not c.reducer.commutative)
    return replace(c, reducer=other)


def an_identity(c: Computation, p: Plan, r: random.Random) -> Changed:
    if c.reducer is None:
        return None
    first, *more = c.reducer.identity
    other = Const(1 if first.type.is_bool or first.value != 1 else 2, first.type)
    if other is first:
        return None
    return replace(c, reducer=replace(c.reducer, identity=(other, *more)))


def a_tensor_that_is_written(c: Computation, p: Plan, r: random.Random) -> Changed:
    first, *more = c.outputs
    b = first.tensor
    other = _one([x for x in p.buffers.values() if x.extents == b.extents], r)
    if other is None or other is b or other.dtype is not b.dtype:
        return None
    return replace(c, outputs=(replace(first, tensor=other), *more))


def a_scope(c: Computation, p: Plan, r: random.Random) -> Changed:
    first, *more = c.outputs
    b = first.tensor
    other = Buffer(b.name, b.extents, b.dtype, "stack" if b.scope != "stack" else "")
    return replace(c, outputs=(replace(first, tensor=other), *more))


def a_tag(c: Computation, p: Plan, r: random.Random) -> Changed:
    return replace(c, tags={**c.tags, "other": 1})


IN_COMPUTATIONS: tuple[Fault, ...] = (
    *(a_number, a_sign, an_operator, an_order_of_operands, a_bound, a_guard),
    *(a_tensor_that_is_read, an_index, a_rounding, variables, an_extent),
    *(an_order_of_dimensions, how_a_dimension_combines, a_reducer),
    *(whether_it_commutes, an_identity, a_tensor_that_is_written, a_scope, a_tag),
)


def in_a_computation(fault: Fault, plan: Plan, r: random.Random) -> Plan | None:
    """The plan with one Computation changed."""
    n = r.randrange(len(plan.groups))
    group = plan.groups[n]
    if not group.computations:
        return None
    k = r.randrange(len(group.computations))
    made = fault(group.computations[k], plan, r)
    if made is None:
        return None
    computations = (*group.computations[:k], made, *group.computations[k + 1 :])
    other = FusionGroup(group.name, computations)
    return replace(plan, steps=(*plan.steps[:n], other, *plan.steps[n + 1 :]))


def an_order_of_groups(plan: Plan, r: random.Random) -> Plan | None:
    n = r.randrange(len(plan.steps))
    steps = (*plan.steps[:n], *plan.steps[n : n + 2][::-1], *plan.steps[n + 2 :])
    return replace(plan, steps=steps) if steps != plan.steps else None


def a_missing_group(plan: Plan, r: random.Random) -> Plan | None:
    n = r.randrange(len(plan.steps))
    return replace(plan, steps=(*plan.steps[:n], *plan.steps[n + 1 :]))


def a_fused_group(plan: Plan, r: random.Random) -> Plan | None:
    n = r.randrange(len(plan.steps))
    pair = plan.groups[n : n + 2]
    if len(pair) < 2 or any(g.kernel is not None for g in pair):
        return None
    both = FusionGroup("both", pair[0].computations + pair[1].computations)
    return replace(plan, steps=(*plan.steps[:n], both, *plan.steps[n + 2 :]))


def a_result_in_the_memory_of_another(plan: Plan, r: random.Random) -> Plan | None:
    given = plan.buffers[r.choice(plan.graph.inputs)]
    return replace(plan, buffers={**plan.buffers, plan.graph.outputs[0]: given})


def a_bit_of_a_constant(plan: Plan, r: random.Random) -> Plan | None:
    used = [v for v in used_constants(plan) if plan.graph.constants[v].size]
    v = _one(used, r)
    if v is None:
        return None
    array = np.array(plan.graph.constants[v])
    code = bytearray(array.tobytes())
    code[r.randrange(len(code))] ^= 1
    other = np.frombuffer(bytes(code), array.dtype).reshape(array.shape)
    constants = {**plan.graph.constants, v: other}
    return replace(plan, graph=replace(plan.graph, constants=constants))


IN_PLANS: tuple[Callable[[Plan, random.Random], Plan | None], ...] = (
    *(an_order_of_groups, a_missing_group, a_fused_group),
    *(a_result_in_the_memory_of_another, a_bit_of_a_constant),
)
