"""The inputs of a model whose values decide shapes, such as the `shape` of a Reshape."""

from __future__ import annotations

from tilewright.graph.infer import FallbackProvider
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.open_extents import DOMAIN
from tilewright.graph.ops.registry import definition_of, has_trait
from tilewright.graph.ops.traits import POINTWISE

VALUE_ELEMENTS = 64  # the largest input that may determine shapes
# Operators whose result shapes depend on the shapes of their operands, not on their values.
SHAPED_BY_TYPES = frozenset(
    (
        *("BatchNormalization", "Concat", "Conv", "ConvTranspose", "Einsum"),
        *("Gather", "GatherElements", "GatherND", "Gemm", "GridSample"),
        *("GroupNormalization", "InstanceNormalization", "LayerNormalization"),
        *("MatMul", "RMSNormalization", "RoiAlign", "ScatterElements", "ScatterND"),
    )
)
CONTROL = {"If": (0,), "Loop": (0, 1)}  # inputs that decide which operations run


def shape_inputs(graph: Graph) -> tuple[Value, ...]:
    """The small inputs that determine values needed to type or compile an operator."""
    deciding = {
        v
        for op in graph.operations
        for n, v in enumerate(op.inputs)
        if v is not None and v.static and decides(op, n)
    }
    if not deciding:
        return ()
    # The inputs that each value is computed from; None if one of them is too large to be a key.
    sources: dict[Value, frozenset[Value] | None] = {
        v: frozenset([v]) if _may_decide(v) else None for v in graph.inputs
    }
    for op in graph.operations:
        definition = definition_of(op)
        by_type = definition is not None and definition.static_value is not None
        typed = definition is not None or op.qualified in CONTROL
        found: frozenset[Value] | None = frozenset() if typed else None
        for v in () if by_type else op.reads:
            more = sources.get(v, frozenset())
            found = None if found is None or more is None else found | more
        sources |= dict.fromkeys(op.writes, found)
    needed = frozenset[Value]().union(*(sources.get(v) or () for v in deciding))
    return tuple(v for v in graph.inputs if v in needed)


def deciding_inputs(graph: Graph, fallback: FallbackProvider) -> tuple[Value, ...]:
    """The `shape_inputs` whose values code is specialized for.

    Empty if they decide only branches and loops, and the same code works for all values.
    """
    found = shape_inputs(graph)
    if found and any(op.qualified in CONTROL for op in graph.operations):
        from tilewright.graph.bounded.bound import bound

        return found if shape_inputs(bound(graph, fallback)) else ()
    return found


def decides(op: Operation, n: int) -> bool:
    """Whether the value of input `n` decides the shapes of results, or the code."""
    if op.domain == DOMAIN:  # its results have room for the largest extents
        return False
    definition = definition_of(op)
    if definition is None:
        return n in CONTROL.get(op.qualified, ())
    if n in definition.by_value:
        return True
    if op.qualified in SHAPED_BY_TYPES or has_trait(op, POINTWISE):
        return False
    after_data = n > 0 or len(op.inputs) == 1 or op.qualified == "Range"
    return after_data and not all(o.static for o in op.writes)


def _may_decide(v: Value) -> bool:
    if v.kind != "tensor" or v.dtype is None or v.shape is None or len(v.shape) > 1:
        return False
    return all(isinstance(d, int) and d <= VALUE_ELEMENTS for d in v.shape)
