"""Attention as one operation: two matrix products with a row-wise softmax between them.

The attribute `body` is the graph of the original operators: a product, pointwise operators, a
softmax over the last axis, pointwise operators, a product. It has a parameter for each operand and
one result. The operation means what its body means; as one operation it can become one kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.compute.nodes import Computation
from tilewright.compute.transforms import inline, widen
from tilewright.expr.nodes import Buffer
from tilewright.graph.nodes import Graph, Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import (
    Array,
    OpCall,
    OpDef,
    Type,
    definition_of,
    program_of,
    register,
)
from tilewright.graph.ops.traits import CHANGES_AXES, STACKS
from tilewright.loops.nodes import Kernel

ATTENTION = "Attention"
DOMAIN = "tilewright"


def _body(call: OpCall) -> Graph:
    body = call.attr("body")
    if (
        not isinstance(body, Graph)
        or len(body.inputs) != call.arity
        or len(body.outputs) != 1
    ):
        raise call.error(
            "it needs a body with a parameter for each operand and one result"
        )
    return body


def _types(call: OpCall) -> Sequence[Type]:
    out = _body(call).outputs[0]
    if out.dtype is None:
        raise call.error("the result of its body has no type")
    return [(out.dtype, out.shape)]


def _known(call: OpCall, body: Graph) -> dict[Value, Array]:
    given = zip(body.inputs, call.operation.inputs, strict=True)
    return {v: call.known[a] for v, a in given if a is not None and a in call.known}


def _compute(
    call: OpCall,
    inputs: Sequence[Buffer],
    outputs: Sequence[Buffer],
) -> list[Computation] | None:
    body = _body(call)
    known = _known(call, body)
    buffers = dict(zip(body.inputs, inputs, strict=True)) | {
        body.outputs[0]: outputs[0]
    }
    found: list[Computation] = []
    for op in body.operations:
        for v in op.writes:
            if v not in buffers and v.dtype is not None:
                buffers[v] = Buffer(f"{call.name}_{len(buffers)}", v.extents, v.dtype)
        ends = [
            [None if v is None else buffers.get(v) for v in vs]
            for vs in (op.inputs, op.outputs)
        ]
        program = program_of(op, known, *ends)
        if program is None or any(isinstance(p, Kernel) for p in program):
            return None
        found += [c for p in program if isinstance(p, Computation) for c in widen(p)]
    return _without_chains(found)


def _without_chains(computations: Sequence[Computation]) -> list[Computation]:
    """Inline each map whose result only one other map reads."""
    found: list[Computation] = []
    for first in reversed(computations):
        tensors = {o.tensor for o in first.outputs}
        readers = [n for n, c in enumerate(found) if not tensors.isdisjoint(c.inputs)]
        if first.is_map and len(readers) == 1 and found[readers[0]].is_map:
            combined = inline(first, found[readers[0]])
            if combined is not None:
                found[readers[0]] = combined
                continue
        found.insert(0, first)
    return found


def _reference(call: OpCall, *arrays: Any) -> list[Any] | None:
    body = _body(call)
    values: dict[Value, Any] = dict(zip(body.inputs, arrays, strict=True))
    for op in body.operations:
        definition = definition_of(op)
        if definition is None or definition.reference is None:
            return None
        operands = [None if v is None else values[v] for v in op.inputs]
        found = definition.reference(OpCall(op, values), *operands)
        if found is None:
            return None
        values |= {
            v: a for v, a in zip(op.outputs, found, strict=False) if v is not None
        }
    return [values[body.outputs[0]]]


def _flops(call: OpCall) -> int:
    body = _body(call)
    known = _known(call, body)
    total = 0
    for op in body.operations:
        definition = definition_of(op)
        if definition is not None and definition.flops is not None:
            total += definition.flops(OpCall(op, known))
    return total


def _decompose(call: OpCall, f: Fragment) -> list[Value]:
    body = _body(call)
    values: dict[Value, Value] = {v: call.value(n) for n, v in enumerate(body.inputs)}
    for op in body.operations:
        operands = [None if v is None else values[v] for v in op.inputs]
        found = f.ops(
            op.op_type,
            *operands,
            version=op.version,
            domain=op.domain,
            count=len(op.outputs),
            **op.attributes,
        )
        values |= {
            v: new for v, new in zip(op.outputs, found, strict=True) if v is not None
        }
    return [values[body.outputs[0]]]


register(
    OpDef(
        ATTENTION,
        _types,
        DOMAIN,
        compute=_compute,
        reference=_reference,
        flops=_flops,
        decompose=_decompose,
        traits=CHANGES_AXES | STACKS,
    )
)
