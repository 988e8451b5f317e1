"""Graphs as text: one line per operation, in order, with the result types."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.graph.nodes import Graph, Operation, Value

MAX_LIST = 8
_INDENT = "  "


def show(graph: Graph) -> str:
    """The whole graph, with subgraphs indented below their operation."""
    return "\n".join(_lines(graph))


def _lines(graph: Graph) -> list[str]:
    inputs = ", ".join(map(str, graph.inputs))
    outputs = ", ".join(map(str, graph.outputs))
    lines = [f"graph {graph.name}({inputs}) -> ({outputs}) {{"]
    for value, array in graph.constants.items():
        lines.append(f"{_INDENT}const {value} = {_array(array)}")
    for op in graph.operations:
        lines.append(_INDENT + show_operation(op))
        for key, attribute in op.attributes.items():
            if isinstance(attribute, Graph):
                inner = _lines(attribute)
                lines.append(f"{_INDENT * 2}{key}: {inner[0]}")
                lines += [_INDENT * 2 + line for line in inner[1:]]
    return [*lines, "}"]


def show_operation(op: Operation) -> str:
    """`y: float32[1, 8] = Gemm(x, w, b; transB=1)  # name`."""
    results = ", ".join("_" if v is None else str(v) for v in op.outputs)
    operands = ", ".join("_" if v is None else v.name for v in op.inputs)
    attributes = ", ".join(
        f"{k}={_attribute(v)}" for k, v in sorted(op.attributes.items())
    )
    inside = "; ".join(part for part in (operands, attributes) if part)
    note = f"  # {op.name}" if op.name else ""
    return f"{results} = {op.qualified}({inside}){note}"


def _attribute(value: Any) -> str:
    if isinstance(value, Graph):
        return f"<{value.name}>"
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, Value):
        return value.name
    if isinstance(value, list | tuple):
        parts = [_attribute(v) for v in value[:MAX_LIST]]
        if len(value) > MAX_LIST:
            parts.append(f"... {len(value)} in all")
        return f"[{', '.join(parts)}]"
    return repr(value)


def _array(array: np.ndarray[Any, Any]) -> str:
    if array.size <= MAX_LIST:
        return " ".join(str(array.tolist()).split())
    if array.dtype.kind in "fiub":
        wide = array.astype(np.float64)
        return f"<min {wide.min():.4g}, max {wide.max():.4g}, mean {wide.mean():.4g}>"
    return f"<{array.size} elements>"
