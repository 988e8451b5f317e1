"""Compares a compiled model with float64, down to the first operator that differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.cli.rounds import difference
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph.interp import evaluate
from tilewright.graph.nodes import Graph, Operation, Value

Array = np.ndarray[Any, Any]
# Runs a graph natively: feeds in, outputs in the order of the graph.
Native = Callable[[Graph, Mapping[str, Array]], Sequence[Any]]

# Largest difference allowed, relative to the tensor's peak. Integers and truth values are exact.
TOLERANCE: Final = {
    "float64": 1e-10,
    "float32": 1e-4,
    "float16": 5e-3,
    "bfloat16": 4e-2,
    "tf32": 5e-3,  # as many bits as float16
}
_NARROW: Final = 0.15


def tolerance(dtype: DType | None, asked: float | None = None) -> float:
    """The largest allowed difference for values of that type, unless the caller gives one."""
    if asked is not None:
        return asked
    if dtype is None or not (dtype.is_float or dtype.is_complex):
        return 0.0
    if dtype.is_complex:
        return TOLERANCE["float32"]
    return TOLERANCE.get(dtype.name, _NARROW)


def asked_for(precision: str | None, tolerance: float | None) -> float | None:
    """The tolerance that a caller gives, by a number or by a lower precision; None: the usual."""
    if tolerance is None and precision is not None:
        return TOLERANCE[precision]
    return tolerance


@dataclass(frozen=True)
class Divergence:
    """The first operator whose result differs though its operands agree.

    fused: it differs only when compiled together with its neighbors.
    """

    operation: Operation
    value: Value
    error: float
    allowed: float
    fused: bool

    def to_dict(self) -> dict[str, Any]:
        """As a dictionary, for JSON."""
        op, value = self.operation, self.value
        return {
            "node": op.label,
            "operator": op.qualified,
            "output": value.name,
            "type": value.type_text,
            "operands": [None if v is None else str(v) for v in op.inputs],
            "difference": self.error,
            "allowed": self.allowed,
            "only_fused": self.fused,
        }

    def __str__(self) -> str:
        op = self.operation
        operands = ", ".join("-" if v is None else str(v) for v in op.inputs)
        how = ", only when compiled together with its neighbors" if self.fused else ""
        return (
            f"node {op.label!r} ({op.qualified}) is the first that differs{how}: its output "
            f"{self.value} is off by {self.error:.2g} of its peak, {self.allowed:.2g} allowed; "
            f"operands: {operands or 'none'}"
        )


def first(
    graph: Graph, feeds: Mapping[str, Array], native: Native, asked: float | None = None
) -> Divergence | None:
    """The first difference of the native program; None if it cannot be reproduced.

    Every intermediate value is compared at once; if all agree then, the fault is in how operators
    are compiled together, and shorter and shorter programs find it.
    """
    steps = [
        (op, v) for op in graph.operations for v in op.writes if v.kind == "tensor"
    ]
    whole = _ending_in(graph, [v for _, v in steps])
    expected = dict(zip(whole.outputs, reference(whole, feeds)))
    found = dict(zip(whole.outputs, native(whole, feeds)))
    for op, v in steps:
        error, allowed = gap(found[v], expected[v]), tolerance(v.dtype, asked)
        if not error <= allowed:
            return Divergence(op, v, error, allowed, False)
    low, high = 0, len(steps)
    worst: Divergence | None = None
    while low < high:
        middle = (low + high) // 2
        op, v = steps[middle]
        [result] = native(_ending_in(graph, [v]), feeds)
        error, allowed = gap(result, expected[v]), tolerance(v.dtype, asked)
        if error <= allowed:
            low = middle + 1
        else:
            high = middle
            worst = Divergence(op, v, error, allowed, True)
    return worst


def reference(graph: Graph, feeds: Mapping[str, Array]) -> list[Any]:
    """The outputs in float64."""
    found = evaluate(graph, feeds, float64=True, fallback=OnnxFallback())
    return [found[v.name] for v in graph.outputs]


def gap(got: Any, expected: Any) -> float:
    """The largest difference relative to the peak of the expected values; inf for another shape."""
    try:
        return difference([np.asarray(got)], [np.asarray(expected)])
    except ValueError:
        return float("inf")


def _ending_in(graph: Graph, outputs: Sequence[Value]) -> Graph:
    """The part of the graph that computes the values."""
    needed = set(outputs)
    kept: list[Operation] = []
    for op in reversed(graph.operations):
        if any(v in needed for v in op.writes):
            needed.update(op.reads)
            kept.append(op)
    part = replace(graph, outputs=tuple(outputs))
    return part.with_operations(kept[::-1])
