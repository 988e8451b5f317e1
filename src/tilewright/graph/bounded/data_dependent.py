"""Whether a graph has extents that depend on data, and its closed bodies of control flow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.graph.nodes import Graph, Operation
from tilewright.graph.ops.bounded_control import IF, LOOP

# Operators whose results may be open even if no operand is.
SOURCES = frozenset(("Compress", "NonMaxSuppression", "NonZero", "Unique"))
# Operators whose results may be sized by a number that is computed at run time.
SIZED = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Slice": (1, 2),
    "TopK": (1,),
}
# Operators that create data-dependent extents.
STARTS = SOURCES | SIZED.keys()
# Operators that run subgraphs, which read values of the graph around them.
CONTROL = frozenset(("If", "Loop", "Scan"))
# The same for closed subgraphs of bounded tensors.
CLOSED = frozenset((IF, LOOP))


def depends_on_data(graph: Graph) -> bool:
    """Whether an extent of a graph with static inputs depends on data, or may."""
    if not all(v.static for v in graph.inputs):
        return False
    return any(
        op.qualified in CONTROL
        or (op.qualified in STARTS and not all(v.static for v in op.writes))
        for op in graph.operations
    )


def over_bodies(graph: Graph, change: Callable[[Graph], Graph]) -> Graph:
    """Apply a change to every closed body of the graph."""
    if not any(op.qualified in CLOSED for op in graph.operations):
        return graph

    def changed(op: Operation) -> Operation:
        if op.qualified not in CLOSED:
            return op
        attributes = {
            k: change(a) if isinstance(a, Graph) else a
            for k, a in op.attributes.items()
        }
        return replace(op, attributes=attributes)

    return graph.with_operations([changed(op) for op in graph.operations])
