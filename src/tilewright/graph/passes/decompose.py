"""Replacing operators without a native form by their decompositions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.graph.blocks import BlockCosts
from tilewright.graph.nodes import DataDependent, Graph, Operation, Value
from tilewright.graph.ops.errors import definition_of_node
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.inside import check_parts
from tilewright.graph.ops.registry import OpCall, definition_of, program_of
from tilewright.loops.nodes import Kernel


def decompose(graph: Graph) -> Graph:
    """The graph with operators that have no native form replaced by their decompositions."""
    operations: list[Operation] = []
    constants = dict(graph.constants)
    changed = False
    queue = list(reversed(graph.operations))
    while queue:
        op = queue.pop()
        parts = _parts(op, constants)
        if parts is None:
            operations.append(op)
            continue
        changed = True
        fragment, renamed = parts
        constants |= fragment.constants
        queue.extend(reversed(renamed))
    return graph.with_operations(operations, constants) if changed else graph


def _parts(
    op: Operation, known: dict[Value, Any]
) -> tuple[Fragment, list[Operation]] | None:
    definition = definition_of(op)
    if definition is None or definition.decompose is None:
        return None
    # Last, as it builds the operator's program.
    if not all(v.static for v in (*op.reads, *op.writes)) or _native(op, known):
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
            extra.append(
                Operation(
                    "Identity",
                    (new,),
                    (old,),
                    version=21,
                    name=f"{op.label}/out",
                )
            )
    operations = [_renamed(o, swap) for o in fragment.operations]
    return fragment, [*operations, *(_renamed(o, swap) for o in extra)]


def _renamed(op: Operation, swap: dict[Value, Value]) -> Operation:
    def one(values: Sequence[Value | None]) -> tuple[Value | None, ...]:
        return tuple(None if v is None else swap.get(v, v) for v in values)

    return Operation(
        op.op_type,
        one(op.inputs),
        one(op.outputs),
        attributes=op.attributes,
        domain=op.domain,
        version=op.version,
        name=op.name,
    )


def _native(op: Operation, known: dict[Value, Any]) -> bool:
    buffers = {v: _scratch(v) for v in (*op.reads, *op.writes) if v.static}
    return native_program(op, known, buffers) is not None


def native_program(
    op: Operation,
    known: Mapping[Value, Any],
    buffers: Mapping[Value, Buffer],
    blocks: BlockCosts | None = None,
) -> Sequence[Computation | Kernel] | None:
    """The program that an operator's definition builds on its values' buffers; None without one.

    known: the values of constants. blocks: of a target with blocks of threads.
    """
    if not all(v in buffers for v in (*op.reads, *op.writes)):
        return None
    inputs, outputs = (operands(v, buffers) for v in (op.inputs, op.outputs))
    return program_of(op, known, inputs, outputs, blocks=blocks)


def operands(
    values: Sequence[Value | None], buffers: Mapping[Value, Buffer]
) -> list[Buffer | None]:
    """The buffers of an operator's inputs or outputs, None for omitted ones."""
    return [None if v is None else buffers[v] for v in values]


def _scratch(v: Value) -> Buffer:
    assert v.dtype is not None
    return Buffer(v.name, v.extents, v.dtype)
