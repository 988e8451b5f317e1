"""From operators to groups: every value becomes a Buffer, every operator its Computations.

An operator without a native form is decomposed if its definition says how; otherwise it becomes a
host fallback, which Python runs between native segments.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from tilewright.base.dtypes import DType
from tilewright.base.errors import CompileError
from tilewright.base.names import fresh
from tilewright.compute.nodes import Computation
from tilewright.compute.transforms import follow, order_dims, relayout, widen
from tilewright.expr.nodes import Buffer
from tilewright.graph.blocks import BlockCosts
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.errors import definition_of_node
from tilewright.graph.ops.inside import check_program
from tilewright.graph.ops.registry import OpCall, definition_of, native_dtype
from tilewright.graph.passes.decompose import decompose, native_program, operands
from tilewright.loops.nodes import Kernel
from tilewright.plan import layout
from tilewright.plan.control import CONTROL, Nested, control
from tilewright.plan.nodes import FusionGroup, HostFallback, Plan, Step

# The buffer of a logical tensor, and the order of its axes there.
Layouts = dict[Buffer, tuple[Buffer, tuple[int, ...]]]


def _name(taken: set[str], text: str) -> str:
    """A unique name made of the text's words."""
    return fresh(taken, re.sub(r"\W+", "_", text).strip("_") or "t")


def lower(
    graph: Graph,
    channel_last: bool = True,
    nested: Nested | None = None,
    blocks: BlockCosts | None = None,
    few: int = 0,
) -> Plan:
    """The plan of a graph with folded constants. Host operators keep values row-major.

    nested: makes the plans of bodies; by default, this function. blocks: of a target whose blocks
    of threads share memory. few: channels of maps that stay row-major, at most.
    """
    inside = nested or partial(lower, channel_last=channel_last, blocks=blocks, few=few)
    graph = decompose(graph)
    logical = _logical(graph)
    programs = {
        op: native_program(op, graph.constants, logical, blocks)
        for op in graph.operations
    }
    for op, program in programs.items():
        if program is not None:
            check_program(
                op,
                program,
                *(operands(v, logical) for v in (op.inputs, op.outputs)),
            )
    fixed = {
        v
        for op, program in programs.items()
        for v in (*op.reads, *op.writes)
        if program is None or any(isinstance(p, Kernel) for p in program)
    }
    orders = layout.choose(graph, fixed, few) if channel_last else {}
    stored = {
        logical[v]: _moved(logical[v], order)
        for v, order in orders.items()
        if v in logical
    }
    buffers = {v: stored[b][0] if b in stored else b for v, b in logical.items()}
    data = {buffers[v]: array for v, array in graph.constants.items() if v in logical}
    kernel_names: set[str] = set()
    values = set(logical.values())
    steps: list[Step] = []
    for op in graph.operations:
        program = programs[op]
        if op.qualified in CONTROL:
            step = control(op, buffers, inside)
            steps.append(step)
            graph = _replaced(graph, op, step.operation)
        elif program is None:
            steps.append(_host_call(op, buffers))
        else:
            scratch = stored | _scratch_layouts(program, stored, values)
            steps.extend(_stages(op, program, scratch, kernel_names, graph))
    return Plan(graph, tuple(steps), buffers, data)


def _logical(graph: Graph) -> dict[Value, Buffer]:
    """A Buffer, row-major, for each value that kernels can have."""
    names: set[str] = set()
    found: dict[Value, Buffer] = {}
    for v in graph.values:
        if v.static and native_dtype(v.dtype):
            found[v] = Buffer(_name(names, v.name), v.extents, v.dtype or _never())
    return found


def _replaced(graph: Graph, old: Operation, new: Operation) -> Graph:
    """The graph with an operation replaced by one with the same results."""
    found = tuple(new if op is old else op for op in graph.operations)
    return replace(graph, operations=found)


def _moved(b: Buffer, order: tuple[int, ...]) -> tuple[Buffer, tuple[int, ...]]:
    """A Buffer for the same tensor with its axes in `order`."""
    return Buffer(b.name, tuple(b.shape[a] for a in order), b.dtype), order


def _host_call(op: Operation, buffers: Mapping[Value, Buffer]) -> HostFallback:
    reads, writes = (
        tuple(buffers[v] for v in e if v in buffers) for e in (op.reads, op.writes)
    )
    return HostFallback(op, reads, writes)


def _stages(
    op: Operation,
    program: Sequence[Computation | Kernel],
    stored: Layouts,
    names: set[str],
    graph: Graph,
) -> Iterable[FusionGroup]:
    definition = definition_of(op)
    counter = definition.flops if definition is not None else None
    flops = 0
    if counter is not None:
        with definition_of_node(op, "flops of its definition fails", CompileError):
            flops = counter(OpCall(op, graph.constants))
    group: list[Computation] = []
    found: list[FusionGroup] = []

    def close() -> None:
        for part in _independent(group):
            name = _name(names, op.name or part[0].name)
            found.append(
                FusionGroup(
                    name=name,
                    computations=tuple(part),
                    sources=(op.label,),
                    flops=flops if not found else 0,
                )
            )
        group.clear()

    for item in program:
        if isinstance(item, Kernel):
            close()
            name = _name(names, op.name or item.name)
            found.append(
                FusionGroup(
                    name=name,
                    computations=(),
                    sources=(op.label,),
                    flops=flops if not found else 0,
                    kernel=item,
                )
            )
        elif any(o.tensor.size for o in item.outputs):
            for c in widen(order_dims(relayout(item, stored))):
                aligned = (
                    follow(group[-1], c) if group and not group[-1].is_map else None
                )
                group.append(c if aligned is None else aligned)
    close()
    return found


def _scratch_layouts(
    program: Sequence[Computation | Kernel], stored: Layouts, values: Container[Buffer]
) -> Layouts:
    """Lay out an operator's intermediates (not in `values`) like its operands and results of the
    same shape."""
    items = [c for c in program if isinstance(c, Computation)]
    read = [b for c in items for b in c.inputs]
    written = dict.fromkeys(o.tensor for c in items for o in c.outputs)
    orders = {b.shape: stored[b][1] for b in (*read, *written) if b in stored}
    return {
        b: _moved(b, order)
        for b in written
        if b not in values and (order := orders.get(b.shape)) is not None
    }


def _independent(group: Sequence[Computation]) -> list[list[Computation]]:
    """Split Computations into independent groups (such as the pieces of a concatenation)."""
    parts: list[list[Computation]] = []
    for c in group:
        linked = [
            p
            for p in parts
            if any(o.tensor in c.inputs for other in p for o in other.outputs)
        ]
        merged = [x for p in linked for x in p]
        parts = [p for p in parts if p not in linked]
        parts.append([*merged, c])
    return parts


def _never() -> DType:
    raise AssertionError("a native value has a dtype")
