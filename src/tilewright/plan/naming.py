"""Giving every buffer and dimension of a plan a unique name, as its text needs.

Names of buffers and operators are unique in the plan, those of variables in their group. A variable
that several Computations of a group share stays shared, as loop merging relies on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any, Final, TypeVar

from tilewright.base.dataclass import dataclass
from tilewright.base.names import fresh
from tilewright.compute.nodes import Computation, Output, sizes_of
from tilewright.compute.parser import RESERVED
from tilewright.compute.reducer import STANDARD, Reducer, reducer
from tilewright.expr.nodes import Buffer, Load, Var
from tilewright.ir.node import Node, postorder
from tilewright.loops.nodes import Alloc, For, Kernel, Store, Update
from tilewright.plan.nodes import (
    Branch,
    Control,
    DeviceCall,
    DeviceCopy,
    FusionGroup,
    HostFallback,
    Loop,
    MemoryPlan,
    OpenExtent,
    Plan,
    Step,
)

_WORDS: Final = frozenset(
    "for if else while alloc block pass kernel local none".split()
)

T = TypeVar("T")


def named(plan: Plan) -> Plan:
    """The same plan with unique identifiers as names; names that already are stay unchanged.

    Values that were merged into a group no longer have buffers.
    """
    names = _Names({e.size.name for e in plan.open})
    values = {
        v: names.buffer(plan.buffers[v]) for v in plan.named_values if v in plan.buffers
    }
    steps = {s: _step(s, names) for s in plan.steps}
    return Plan(
        plan.graph,
        tuple(steps.values()),
        values,
        names.keys(plan.data),
        names.keys(plan.devices),
        None if plan.memory is None else _memory(plan.memory, names, steps),
        tuple(_open(e, names) for e in plan.open),
    )


def _open(extent: OpenExtent, names: _Names) -> OpenExtent:
    if not isinstance(extent.source, Buffer):
        return extent
    return replace(extent, source=names.buffer(extent.source))


def operators(plan: Plan) -> Iterator[Reducer]:
    """The nonstandard operators of a plan, each once."""
    found = dict.fromkeys(
        op
        for s in plan.groups
        for op in _operators(s)
        if op is not None and not is_standard(op)
    )
    yield from found


def is_standard(op: Reducer) -> bool:
    """Whether the operator's name alone identifies it."""
    if op.name not in STANDARD or len(op.dtypes) != 1:
        return False
    usual = reducer(op.name, op.dtypes[0])
    return op.does_as(usual) and op.commutative == usual.commutative


def _operators(group: FusionGroup) -> Iterator[Reducer | None]:
    if group.kernel is None:
        yield from (c.reducer for c in group.computations)
    else:
        found = (n for n in postorder(group.kernel.body) if isinstance(n, Update))
        yield from (n.reducer for n in found)


@dataclass(eq=False, slots=True)
class _Names:
    """The names in use, and the renamings so far."""

    taken: set[str] = field(default_factory=set)
    buffers: dict[Buffer, Buffer] = field(default_factory=dict)
    operators: dict[Reducer, Reducer] = field(default_factory=dict)
    operator_names: set[str] = field(default_factory=lambda: set(STANDARD))

    def buffer(self, b: Buffer) -> Buffer:
        if b not in self.buffers:
            name = fresh(self.taken, _word(b.name))
            same = name == b.name
            self.buffers[b] = b if same else Buffer(name, b.extents, b.dtype, b.scope)
        return self.buffers[b]

    def operator(self, op: Reducer | None) -> Reducer | None:
        if op is None or is_standard(op):
            return op
        if op not in self.operators:
            name = fresh(self.operator_names, _word(op.name))
            lhs = tuple(Var(f"a{n}", v.dtype) for n, v in enumerate(op.lhs))
            rhs = tuple(Var(f"b{n}", v.dtype) for n, v in enumerate(op.rhs))
            self.operators[op] = Reducer(
                name,
                lhs,
                rhs,
                op.combine(lhs, rhs),
                op.identity,
                op.commutative,
            )
        return self.operators[op]

    def keys(self, found: Mapping[Buffer, T]) -> dict[Buffer, T]:
        return {self.buffer(b): x for b, x in found.items()}

    def each(self, found: Iterable[Buffer]) -> tuple[Buffer, ...]:
        return tuple(map(self.buffer, found))


def _word(text: str) -> str:
    """A text as an identifier that is not a keyword."""
    word = re.sub(r"[^\w.]", "_", text)
    word = word if re.match(r"[^\W\d]", word) else f"b{word}"
    if RESERVED.fullmatch(word) or word in _WORDS:
        return f"{word}_"
    return word


def _memory(
    memory: MemoryPlan, names: _Names, steps: Mapping[Step, Step]
) -> MemoryPlan:
    over = {}
    for step, found in memory.over.items():
        group = steps[step]
        assert isinstance(group, FusionGroup)
        over[group] = names.each(found)
    inside: dict[Control, int] = {}
    for control, at in memory.inside.items():
        made = steps[control]
        assert isinstance(made, Loop | Branch)
        inside[made] = at
    places = names.keys(memory.places)
    return replace(memory, places=places, over=over, inside=inside)


def _step(step: Step, names: _Names) -> Step:
    if isinstance(step, HostFallback | DeviceCall):
        reads = names.each(step.reads)
        writes = names.each(step.writes)
        return replace(step, reads=reads, writes=writes)
    if isinstance(step, DeviceCopy):
        source = names.buffer(step.source)
        target = names.buffer(step.target)
        return DeviceCopy(source, target)
    if isinstance(step, Loop):
        return replace(
            step,
            trips=names.buffer(step.trips),
            going=names.buffer(step.going),
            initial=names.each(step.initial),
            taken=names.each(step.taken),
            count=names.buffer(step.count),
            states=names.each(step.states),
            stacked=names.each(step.stacked),
        )
    if isinstance(step, Branch):
        return replace(
            step,
            condition=names.buffer(step.condition),
            taken=names.each(step.taken),
            results=names.each(step.results),
        )
    if step.kernel is not None:
        return replace(step, kernel=_kernel(step.kernel, names))
    for b in (*step.reads, *step.writes):
        names.buffer(b)
    taken = set(names.taken)
    variables: dict[Var, Var] = {}
    for c in step.computations:
        for d in c.dims:
            if d.var not in variables:
                variables[d.var] = _variable(d.var, taken)
    made = [_computation(c, names, variables) for c in step.computations]
    return replace(step, computations=tuple(made))


def _variable(v: Var, taken: set[str]) -> Var:
    name = fresh(taken, _word(v.name))
    if name == v.name:
        return v
    return Var(name, v.dtype)


def _computation(
    c: Computation, names: _Names, variables: dict[Var, Var]
) -> Computation:
    dims = []
    for d in c.dims:
        dims.append(replace(d, var=variables[d.var]))
    outputs = []
    for o in c.outputs:
        tensor = names.buffer(o.tensor)
        index = tuple(_renamed(i, names, variables) for i in o.index)
        value = _renamed(o.value, names, variables)
        outputs.append(Output(tensor, index, value))
    return replace(
        c,
        name=_word(c.name),
        dims=tuple(dims),
        outputs=tuple(outputs),
        reducer=names.operator(c.reducer),
    )


def _kernel(kernel: Kernel, names: _Names) -> Kernel:
    """Give its local buffers and loops names that are unused in the plan."""
    params = names.each(kernel.params)
    inner = _Names(
        taken=set(names.taken),
        buffers=dict(names.buffers),
        operators=names.operators,
        operator_names=names.operator_names,
    )
    statements = list(postorder(kernel.body))
    for n in statements:
        if isinstance(n, Alloc):
            inner.buffer(n.buffer)
    sizes = sizes_of(e for b in kernel.params for e in b.extents)
    variables: dict[Var, Var] = {v: v for v in sizes}
    notes = {}
    for n in statements:
        if isinstance(n, For) and n.var not in variables:
            variables[n.var] = _variable(n.var, inner.taken)
        if isinstance(n, For):
            if n.var.name in kernel.notes:
                notes[variables[n.var].name] = kernel.notes[n.var.name]
    body = _renamed(kernel.body, inner, variables)
    outputs = names.each(kernel.outputs)
    return Kernel(_word(kernel.name), params, outputs, body, notes)


def _renamed(root: Any, names: _Names, variables: Mapping[Var, Var]) -> Any:
    """Expressions or statements with buffers, variables and operators renamed."""
    done: dict[Node, Any] = dict(variables.items())
    for node in postorder(root):
        if node not in done:
            done[node] = _with_names(node.map(done.__getitem__), names)
    return done[root]


def _with_names(node: Any, names: _Names) -> Any:
    match node:
        case Load() | Store() | Alloc():
            return node.replace(buffer=names.buffer(node.buffer))
        case Update():
            buffers = tuple(map(names.buffer, node.buffers))
            return node.replace(buffers=buffers, reducer=names.operator(node.reducer))
    return node
