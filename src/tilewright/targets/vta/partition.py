"""What of a model runs on the machine, and why the rest does not.

A convolution or a product with constant weights takes with it what follows: its bias, the addition
of a tensor that is there already, and a ReLU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.graph.nodes import Graph, Operation, Value

PRODUCTS = ("Conv", "Gemm")


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """Operations that run as one. product: the convolution or Gemm that the machine does.

    why: what keeps the operations on the CPU, empty for those of the machine. residual: the tensor
    that is added to the product.
    """

    operations: tuple[Operation, ...]
    result: Value
    product: Operation | None = None
    residual: Value | None = None
    relu: bool = False
    why: str = ""

    @property
    def name(self) -> str:
        """The operators, in order."""
        return "+".join(op.op_type for op in self.operations)


def partition(graph: Graph) -> list[Part]:
    """The operations of a graph as parts, in an order in which they can run."""
    users: dict[Value, list[Operation]] = {}
    for op in graph.operations:
        for v in op.reads:
            users.setdefault(v, []).append(op)
    known = {*graph.inputs, *graph.constants}
    done: set[Operation] = set()
    parts: list[Part] = []
    for op in graph.operations:
        if op in done:
            continue
        part = _part(graph, op, users, known)
        parts.append(part)
        done.update(part.operations)
        known |= {v for o in part.operations for v in o.writes}
    return parts


def _part(
    graph: Graph, op: Operation, users: Mapping[Value, Sequence[Operation]], known: set[Value]
) -> Part:
    (result, *_) = op.writes
    why = refused(graph, op)
    if why:
        return Part((op,), result, why=why)
    taken, residual, relu = [op], None, False
    after = _only(graph, result, users)
    if after is not None and after.op_type == "Add":
        others = [v for v in after.inputs if v is not None and v is not result]
        if len(others) == 1 and others[0] in known and others[0] not in graph.constants:
            taken, residual, result = [op, after], others[0], after.writes[0]
            after = _only(graph, result, users)
    if after is not None and after.op_type == "Relu":
        taken, relu, result = [*taken, after], True, after.writes[0]
    return Part(tuple(taken), result, op, residual, relu)


def _only(graph: Graph, v: Value, users: Mapping[Value, Sequence[Operation]]) -> Operation | None:
    """The operation that alone reads a value."""
    found = users.get(v, ())
    return found[0] if len(found) == 1 and v not in graph.outputs else None


def refused(graph: Graph, op: Operation) -> str:
    """Why the machine does not do an operation; empty if it does."""
    if op.op_type not in PRODUCTS or op.domain:
        return f"{op.qualified} is no product"
    if any(v is not None and v not in graph.constants for v in op.inputs[1:]):
        return "its weights are not constant"
    a = op.attributes
    if op.op_type == "Gemm":
        plain = a.get("alpha", 1.0) == a.get("beta", 1.0) == 1.0 and not a.get("transA", 0)
        return "" if plain else "its factors are scaled or transposed"
    weights = graph.constants[_value(op.inputs[1])]
    if weights.ndim != 4:
        return f"its kernel has {weights.ndim - 2} dimensions"
    if a.get("group", 1) != 1:
        return f"it has {a['group']} groups"
    if any(d != 1 for d in a.get("dilations", ())):
        return "it is dilated"
    if a.get("auto_pad", "NOTSET") not in ("NOTSET", b"NOTSET", "VALID", b"VALID"):
        return "its padding is implicit"
    pads = a.get("pads") or (0, 0, 0, 0)
    if tuple(pads[:2]) != tuple(pads[2:]):
        return "its padding is not the same on both sides"
    if any(p >= k for p, k in zip(pads, weights.shape[2:], strict=False)):
        return "its padding is as large as its kernel"
    return ""


def _value(v: Any) -> Value:
    assert isinstance(v, Value)
    return v
