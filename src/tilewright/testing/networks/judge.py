"""Compares a compiled network's results with float64, within a bound on rounding errors.

After d successive roundings, each of at most half a unit in the last place, a value is off by about
sqrt(d) of them (up and down are equally likely). d is counted along the graph: a product or a sum
over k numbers adds k, any other operator one. The allowed difference is FACTOR * unit * sqrt(d),
relative to the tensor's peak. None of it is fitted to results.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.base import dtypes
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph import interp
from tilewright.graph.nodes import Graph, Operation, Value

Array = np.ndarray[Any, Any]
FACTOR = 4.0
# In math="fast", Winograd of tiles of 4x4: its transforms multiply by up to 8, each way.
FAST = 16.0
UNIT = {
    "float16": 2.0**-10,
    "float32": 2.0**-23,
    "float64": 2.0**-52,
}
# A rounding to bytes may go either way at a tie; the next layers pass on a step of 1/127.
STEP = 1.5 / 127
QUANTIZERS = frozenset(
    {"QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul"}
)


class NetworkJudge:
    """The values of a graph in float64 on some inputs, and the error allowed for each.

    Raises whatever the interpreter raises.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str, Array],
        math: str = "default",
    ) -> None:
        found = interp.evaluate(graph, inputs, float64=True, fallback=OnnxFallback())
        self.outputs = graph.outputs
        self.expected = {v: np.asarray(found[v.name]) for v in graph.outputs}
        factor = FAST if math == "fast" else FACTOR
        self.allowed = {v: factor * share for v, share in _shares(graph).items()}

    def wrong(self, results: Any) -> list[str]:
        """The faults of these outputs, a line each."""
        if isinstance(results, tuple | list):
            found = list(results)
        else:
            found = [results]
        if len(found) != len(self.outputs):
            return [f"{len(found)} outputs, expected {len(self.outputs)}"]
        pairs = zip(self.outputs, found, strict=True)
        return [line for v, a in pairs if (line := self._one(v, np.asarray(a)))]

    def _one(self, v: Value, got: Array) -> str:
        want = self.expected[v]
        where = f"{v.name} ({v.type_text})"
        if got.shape != want.shape or dtypes.dtype_of(got.dtype) is not v.dtype:
            return f"{where} is {got.dtype}{list(got.shape)}"
        if not want.size:
            return ""
        difference = np.abs(got.astype(np.float64) - want.astype(np.float64))
        bound = self.bound(v)
        wrong = ~(difference <= bound)
        if not wrong.any():
            return ""
        at = tuple(map(int, np.argwhere(wrong)[0]))
        return (
            f"{where}: {int(wrong.sum())} of {wrong.size} values are off, by up to "
            f"{float(difference.max()):.2g}, first at {at}: {got[at]}, expected {want[at]} "
            f"within {bound:.2g}"
        )

    def bound(self, v: Value) -> float:
        """The difference allowed, the same for all elements of a tensor."""
        peak = float(np.abs(self.expected[v].astype(np.float64)).max(initial=0.0))
        return self.allowed[v] * peak


def every_value(graph: Graph) -> Graph:
    """The graph with all tensors that it computes as outputs."""
    made = [
        v
        for op in graph.operations
        for v in op.writes
        if v.kind == "tensor" and v.static
    ]
    outputs = tuple(dict.fromkeys((*made, *graph.outputs)))
    return replace(graph, outputs=outputs)


def _shares(graph: Graph) -> dict[Value, float]:
    """The difference that rounding explains in each value, as a share of its peak."""
    depth: dict[Value, float] = dict.fromkeys((*graph.inputs, *graph.constants), 0.0)
    steps: dict[Value, float] = dict.fromkeys(depth, 0.0)
    for op in graph.operations:
        before = max((depth[v] for v in op.reads), default=0.0) + _terms(op)
        stepped = max((steps[v] for v in op.reads), default=0.0)
        for v in op.writes:
            depth[v] = before
            steps[v] = STEP if op.qualified in QUANTIZERS else stepped
    found = {}
    for v, d in depth.items():
        if v.dtype is not None:
            unit = UNIT.get(v.dtype.name, 0.0)
        else:
            unit = 0.0
        if unit:
            found[v] = unit * math.sqrt(d) + steps[v]
        else:
            found[v] = steps[v]
    return found


def _terms(op: Operation) -> int:
    """The number of roundings that an operator adds to those of its operands."""
    sizes = [v.extents for v in op.inputs if v is not None and v.static]
    match op.qualified:
        case "Conv" | "ConvInteger" | "ConvTranspose":
            if op.qualified != "ConvTranspose":
                return math.prod(sizes[1][1:])
            return _lifted(sizes[1])
        case "MatMul" | "MatMulInteger" | "Gemm":
            return sizes[0][0 if op.attributes.get("transA") else -1]
        case "LSTM" | "GRU" | "RNN":
            return sizes[0][0] * (sizes[0][2] + sizes[2][2])
        case "Einsum":
            return max(sizes[0])
        case "LayerNormalization" | "Softmax" | "LogSoftmax" | "CumSum":
            return max(sizes[0])
        case "InstanceNormalization":
            return math.prod(sizes[0][2:])
    largest = max((math.prod(s) for s in sizes), default=1)
    least = min((math.prod(v.extents) for v in op.writes if v.static), default=1)
    return max(1, largest // max(least, 1))


def _lifted(weights: Sequence[int]) -> int:
    return weights[0] * math.prod(weights[2:])


def lines(judge: NetworkJudge, runs: Iterator[Any]) -> list[str]:
    """The faults of several runs, and whether any run differs from the first."""
    first: list[bytes] | None = None
    found: list[str] = []
    for n, results in enumerate(runs):
        found += [f"run {n}: {line}" for line in judge.wrong(results)]
        if isinstance(results, tuple | list):
            arrays = results
        else:
            arrays = [results]
        bits = [np.ascontiguousarray(a).tobytes() for a in arrays]
        if first is not None and bits != first:
            found.append(f"run {n} gives other bits than the first")
        first = first or bits
    return found
