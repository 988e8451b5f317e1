"""From operators to Stages: every value becomes a Buffer, every operator its Computations.

An operator without a native form is decomposed into others if its definition says how; what is
left becomes a HostCall, which runs a reference kernel between the native segments.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.base.dtypes import DType
from tilewright.base.errors import CompileError
from tilewright.base.names import fresh
from tilewright.compute.laws import follow, order_dims, relayout, widen
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.errors import DataDependent, definition_of_node
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.inside import check_parts, check_program
from tilewright.graph.ops.registry import OpCall, definition_of, native_dtype, program_of
from tilewright.graph.passes import layout
from tilewright.graph.stages import HostCall, Stage, Step
from tilewright.loops.nodes import Kernel

# Where a logical tensor is stored, and the order of its axes there.
Layouts = dict[Buffer, tuple[Buffer, tuple[int, ...]]]


@dataclass(eq=False, slots=True)
class Lowered:
    """A graph as Stages and HostCalls in order, with the Buffers of its values.

    buffers: every value that native code touches. data: the constants' contents, row-major in
    the buffer's shape.
    """

    graph: Graph
    steps: list[Step] = field(default_factory=list)
    buffers: dict[Value, Buffer] = field(default_factory=dict)
    data: dict[Buffer, np.ndarray[Any, Any]] = field(default_factory=dict)


def decompose(graph: Graph) -> Graph:
    """Operators without a native form, replaced by the operators of their definition."""
    operations: list[Operation] = []
    constants = dict(graph.constants)
    changed = False
    queue = list(reversed(graph.operations))
    while queue:
        op = queue.pop()
        parts = None if _native(op, constants) else _parts(op, constants)
        if parts is None:
            operations.append(op)
            continue
        changed = True
        fragment, renamed = parts
        constants |= fragment.constants
        queue.extend(reversed(renamed))
    return graph.with_operations(operations, constants) if changed else graph


def _parts(op: Operation, known: dict[Value, Any]) -> tuple[Fragment, list[Operation]] | None:
    definition = definition_of(op)
    if definition is None or definition.decompose is None:
        return None
    if not all(v.static for v in (*op.reads, *op.writes)):
        return None
    fragment = Fragment(op.label, known)
    try:
        with definition_of_node(op):
            results = definition.decompose(OpCall(op, known), fragment)
    except DataDependent:
        return None
    if results is None:
        return None
    check_parts(op, op.outputs, results)
    made = {v for o in fragment.operations for v in o.writes}
    swap: dict[Value, Value] = {}
    extra: list[Operation] = []
    for old, new in zip(op.outputs, results, strict=False):
        if old is None:
            continue
        if new in made and new not in swap:
            swap[new] = old
        else:
            extra.append(Operation("Identity", (new,), (old,), {}, "", 21, f"{op.label}/out"))
    operations = [_renamed(o, swap) for o in fragment.operations]
    return fragment, [*operations, *(_renamed(o, swap) for o in extra)]


def _renamed(op: Operation, swap: dict[Value, Value]) -> Operation:
    def one(values: Sequence[Value | None]) -> tuple[Value | None, ...]:
        return tuple(None if v is None else swap.get(v, v) for v in values)

    return Operation(
        op.op_type, one(op.inputs), one(op.outputs), op.attributes, op.domain, op.version, op.name
    )


def _native(op: Operation, known: dict[Value, Any]) -> bool:
    buffers = {v: _scratch(v) for v in (*op.reads, *op.writes) if v.static}
    return _program(op, known, buffers) is not None


def _program(
    op: Operation, known: dict[Value, Any] | Any, buffers: dict[Value, Buffer]
) -> Sequence[Computation | Kernel] | None:
    if not all(v in buffers for v in (*op.reads, *op.writes)):
        return None
    return program_of(op, known, _buffers(op.inputs, buffers), _buffers(op.outputs, buffers))


def _buffers(
    values: Sequence[Value | None], buffers: Mapping[Value, Buffer]
) -> list[Buffer | None]:
    return [None if v is None else buffers[v] for v in values]


def _scratch(v: Value) -> Buffer:
    assert v.dtype is not None
    return Buffer(v.name, v.extents, v.dtype)


def _name(taken: set[str], text: str) -> str:
    """A name of the text's words, which nothing else has."""
    return fresh(taken, re.sub(r"\W+", "_", text).strip("_") or "t")


def lower(graph: Graph, channel_last: bool = True) -> Lowered:
    """The Stages of a graph whose constants are folded. Host operators keep values row-major."""
    graph = decompose(graph)
    out = Lowered(graph)
    names: set[str] = set()
    logical: dict[Value, Buffer] = {}
    for v in graph.values:
        if v.static and native_dtype(v.dtype):
            logical[v] = Buffer(_name(names, v.name), v.extents, v.dtype or _never())
    programs = {op: _program(op, graph.constants, logical) for op in graph.operations}
    for op, program in programs.items():
        if program is not None:
            check_program(op, program, *(_buffers(v, logical) for v in (op.inputs, op.outputs)))
    fixed = {
        v
        for op, program in programs.items()
        for v in (*op.reads, *op.writes)
        if program is None or any(isinstance(p, Kernel) for p in program)
    }
    orders = layout.choose(graph, fixed) if channel_last else {}
    stored: Layouts = {}
    for v, b in logical.items():
        order = orders.get(v)
        if order is not None:
            moved = Buffer(b.name, tuple(b.shape[a] for a in order), b.dtype)
            stored[b] = (moved, order)
        out.buffers[v] = stored[b][0] if order is not None else b
    for v, array in graph.constants.items():
        if v in logical:
            out.data[out.buffers[v]] = array
    kernel_names: set[str] = set()
    values = set(logical.values())
    for op in graph.operations:
        program = programs[op]
        if program is None:
            out.steps.append(HostCall(op))
        else:
            scratch = stored | _scratch_layouts(program, stored, values)
            out.steps.extend(_stages(op, program, scratch, kernel_names, graph))
    return out


def _stages(
    op: Operation,
    program: Sequence[Computation | Kernel],
    stored: Layouts,
    names: set[str],
    graph: Graph,
) -> Iterable[Stage]:
    definition = definition_of(op)
    counter = definition.flops if definition is not None else None
    flops = 0
    if counter is not None:
        with definition_of_node(op, "flops of its definition fails", CompileError):
            flops = counter(OpCall(op, graph.constants))
    group: list[Computation] = []
    found: list[Stage] = []

    def close() -> None:
        for part in _independent(group):
            name = _name(names, op.name or part[0].name)
            found.append(Stage(name, tuple(part), (op.label,), flops if not found else 0))
        group.clear()

    for item in program:
        if isinstance(item, Kernel):
            close()
            name = _name(names, op.name or item.name)
            found.append(Stage(name, (), (op.label,), flops if not found else 0, item))
        elif any(o.tensor.size for o in item.outputs):
            for c in widen(order_dims(relayout(item, stored))):
                aligned = follow(group[-1], c) if group and not group[-1].is_map else None
                group.append(c if aligned is None else aligned)
    close()
    return found


def _scratch_layouts(
    program: Sequence[Computation | Kernel], stored: Layouts, values: Container[Buffer]
) -> Layouts:
    """An operator's own intermediates, no `values`, are stored as the results of their shape."""
    items = [c for c in program if isinstance(c, Computation)]
    written = dict.fromkeys(o.tensor for c in items for o in c.outputs)
    orders = {b.shape: stored[b][1] for b in written if b in stored}
    return {
        b: (Buffer(b.name, tuple(b.shape[a] for a in order), b.dtype), order)
        for b in written
        if b not in values and (order := orders.get(b.shape)) is not None
    }


def _independent(group: Sequence[Computation]) -> list[list[Computation]]:
    """Computations that feed one another stay together; the others part (pieces of a concat)."""
    parts: list[list[Computation]] = []
    for c in group:
        linked = [
            p for p in parts if any(o.tensor in c.inputs for other in p for o in other.outputs)
        ]
        merged = [x for p in linked for x in p]
        parts = [p for p in parts if p not in linked]
        parts.append([*merged, c])
    return parts


def _never() -> DType:
    raise AssertionError("a native value has a dtype")


def live_buffers(lowered: Lowered) -> dict[Stage, set[Buffer]]:
    """For each Stage the buffers that another step, or the caller of the model, uses."""
    needed = {lowered.buffers[v] for v in lowered.graph.outputs if v in lowered.buffers}
    uses: dict[Buffer, int] = {}
    for step in lowered.steps:
        for b in _touched(step, lowered):
            uses[b] = uses.get(b, 0) + 1
    return {
        s: {b for b in s.writes if b in needed or uses[b] > 1}
        for s in lowered.steps
        if isinstance(s, Stage)
    }


def _touched(step: Step, lowered: Lowered) -> set[Buffer]:
    if isinstance(step, Stage):
        return {*step.reads, *step.writes}
    values = (*step.operation.reads, *step.operation.writes)
    return {lowered.buffers[v] for v in values if v in lowered.buffers}
