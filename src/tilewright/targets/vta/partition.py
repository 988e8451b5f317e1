"""Partitioning a model: the parts that run on the machine, and why the rest does not.

A convolution or a product with constant weights is fused with its bias, the addition of an existing
tensor, and a ReLU. Max pooling is a separate part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import float32
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.registry import OpCall
from tilewright.graph.ops.windows import windows
from tilewright.targets.vta.config import VTAConfig
from tilewright.targets.vta.fields import DEFAULT
from tilewright.targets.vta.intrinsics import ACC, INP, WGT, elements
from tilewright.targets.vta.transfers import MOST_PADS

MATRIX = ("Gemm", "MatMul")
PRODUCTS = ("Conv", *MATRIX)
POOLING = "MaxPool"
_AFTER = (
    4  # accumulators of one result: the sum, its bias, its factor, and what is added
)
_OTHERS = {
    "Add": "it adds neither a constant per channel nor a tensor of the same shape to a product",
    "Relu": "it follows no product",
    "Clip": "it follows no product, or is not a ReLU with a bound",
}


@dataclass(frozen=True, eq=False, slots=True)
class OffloadedPart:
    """Operations that run as one. main: the convolution, product or pooling of the machine.

    why: the reason that the operations stay on the CPU, empty for the machine's. bias: a constant
    added to the product besides its own. residual: the tensor added next. relu: whether negative
    numbers then become 0. most: the upper clamp.
    """

    operations: tuple[Operation, ...]
    result: Value
    main: Operation | None = None
    bias: Value | None = None
    residual: Value | None = None
    relu: bool = False
    most: float = math.inf
    why: str = ""

    @property
    def name(self) -> str:
        """The operators, in order."""
        return "+".join(op.qualified for op in self.operations)


def partition(graph: Graph, config: VTAConfig = DEFAULT) -> list[OffloadedPart]:
    """The operations of a graph as parts, in an order in which they can run."""
    users: dict[Value, list[Operation]] = {}
    for op in graph.operations:
        for v in op.reads:
            users.setdefault(v, []).append(op)
    known = {*graph.inputs, *graph.constants}
    done: set[Operation] = set()
    parts: list[OffloadedPart] = []
    for op in graph.operations:
        if op in done:
            continue
        part = _part(graph, op, users, known, config)
        parts.append(part)
        done.update(part.operations)
        known |= {v for o in part.operations for v in o.writes}
    return parts


def _part(
    graph: Graph,
    op: Operation,
    users: Mapping[Value, Sequence[Operation]],
    known: set[Value],
    config: VTAConfig,
) -> OffloadedPart:
    (result, *_) = op.writes
    why = refused(graph, op, config)
    if why:
        return OffloadedPart((op,), result, why=why)
    if op.qualified == POOLING:
        return OffloadedPart((op,), result, op)
    taken = [op]
    added: dict[bool, Value] = {}  # by whether it is a bias
    after = _only(graph, result, users)
    able = [(True, _per_channel)]
    able += [(False, _alike)] if config.loads_bytes else []
    for is_bias, fits in able:
        other = _other(after, result)
        if other is not None and other in known and fits(graph, op, other, result):
            assert after is not None
            taken, result, added[is_bias] = [*taken, after], after.writes[0], other
            after = _only(graph, result, users)
    most = None if after is None else _rectified(graph, after)
    if most is not None:
        assert after is not None
        taken, result = [*taken, after], after.writes[0]
    relu, most = most is not None, math.inf if most is None else most
    return OffloadedPart(
        tuple(taken), result, op, added.get(True), added.get(False), relu, most
    )


def _rectified(graph: Graph, op: Operation) -> float | None:
    """What a ReLU has as its largest number, if only infinity; None for other operations."""
    if op.qualified == "Relu":
        return math.inf
    if op.qualified != "Clip":
        return None
    if any(v not in graph.constants for v in op.reads[1:]):
        return None
    given = [None if v is None else graph.constants[v].item() for v in op.inputs[1:]]
    given += [None] * (2 - len(given))
    low, most = (
        op.attributes.get(n, v) for n, v in zip(("min", "max"), given, strict=True)
    )
    most = math.inf if most is None else float(most)
    return most if low == 0 and most >= 0 else None


def _other(op: Operation | None, result: Value) -> Value | None:
    """What an addition adds to a tensor; None for any other operation."""
    if op is None or op.qualified != "Add":
        return None
    others = [v for v in op.reads if v is not result]
    if len(others) == 1:
        return others[0]
    return None


def _per_channel(graph: Graph, op: Operation, v: Value, result: Value) -> bool:
    """Whether a tensor is a constant per channel of a result: it is added to the bias."""
    if v not in graph.constants:
        return False
    shape = graph.constants[v].shape
    full = result.extents
    if op.qualified in MATRIX:
        axis = len(full) - 1
    else:
        axis = 1
    last = len(full) - len(shape)
    return last >= 0 and all(
        n == 1 or (last + at == axis and n == full[axis]) for at, n in enumerate(shape)
    )


def _alike(graph: Graph, op: Operation, v: Value, result: Value) -> bool:
    """Whether a tensor is computed and has the shape of a result: it is added byte by byte."""
    same = v.static and result.static and v.extents == result.extents
    return v not in graph.constants and same and v.dtype is float32


def _only(
    graph: Graph, v: Value, users: Mapping[Value, Sequence[Operation]]
) -> Operation | None:
    """The operation that alone reads a value."""
    found = users.get(v, ())
    if len(found) == 1 and v not in graph.outputs:
        return found[0]
    return None


def refused(graph: Graph, op: Operation, config: VTAConfig = DEFAULT) -> str:
    """Why the machine does not do an operation; empty if it does."""
    if op.qualified not in (*PRODUCTS, POOLING):
        return _OTHERS.get(
            op.qualified, f"{op.qualified} is neither a product nor a pooling"
        )
    data = _value(op.inputs[0])
    if data.dtype is not float32 or data in graph.constants:
        return (
            f"its data is {'constant' if data in graph.constants else data.type_text}"
        )
    if not data.static:
        return f"its data's shape is not known: {data.type_text}"
    if op.qualified == POOLING:
        return _narrow(config) or _window_refused(
            op, op.attributes["kernel_shape"], _pooling_needs, config
        )
    if any(v is not None and v not in graph.constants for v in op.inputs[1:]):
        return "its weights are not constant"
    a = op.attributes
    if op.qualified == "Gemm":
        return _gemm_refused(graph, op) or _too_large(_product_needs(1, 1), config)
    weights = graph.constants[_value(op.inputs[1])]
    if op.qualified == "MatMul" and weights.ndim != 2:
        return "its weights are not a matrix"
    if op.qualified == "MatMul":
        return _too_large(_product_needs(1, 1), config)
    groups = a.get("group", 1)
    kernel = weights.shape[2:]
    if groups == 1:
        return _window_refused(op, kernel, _product_needs, config)
    if not weights.shape[0] == groups * weights.shape[1] == groups:
        return f"it has {groups} groups"
    return _narrow(config) or _window_refused(op, kernel, _depthwise_needs, config)


def _narrow(config: VTAConfig) -> str:
    """Why the machine's ALU does not work on its data; empty if it does."""
    if config.loads_bytes:
        return ""
    return (
        f"the ALU takes data of 8 bits, and the machine's has {config.operand_bits[0]}"
    )


def _gemm_refused(graph: Graph, op: Operation) -> str:
    a = op.attributes
    if not a.get("alpha", 1.0) == a.get("beta", 1.0) == 1.0:
        return "its factors are scaled or transposed"
    if a.get("transA", 0):
        return "its factors are scaled or transposed"
    columns = op.writes[0].extents[-1]
    shape = (
        graph.constants[op.inputs[2]].shape
        if len(op.inputs) > 2 and op.inputs[2]
        else ()
    )
    # A bias is a number per column: the same for every row.
    rows = any(n != 1 for n in shape[:-1])
    return (
        f"its bias is {list(shape)}"
        if rows or shape[-1:] not in ((), (1,), (columns,))
        else ""
    )


# What the smallest block, one window, needs of each memory. points: the elements that the window
# covers. weights: those that it has.
Needs = Callable[[int, int], Mapping[str, int]]


def _product_needs(points: int, weights: int) -> Mapping[str, int]:
    return {INP: points, WGT: weights, ACC: _AFTER}


def _depthwise_needs(points: int, weights: int) -> Mapping[str, int]:
    return {ACC: points + weights + 1 + _AFTER}  # a product at a time


def _pooling_needs(points: int, weights: int) -> Mapping[str, int]:
    return {ACC: points + 1}


def _window_refused(
    op: Operation, kernel: Sequence[int], needs: Needs, config: VTAConfig
) -> str:
    """Why a window is not one of the machine's; all strides and dilations are."""
    if len(op.writes) != 1:
        return "it gives indices"
    if len(kernel) != 2:
        return f"its kernel has {len(kernel)} dimensions"
    if min(op.attributes.get("pads") or (0,)) < 0:
        return "its padding is negative"
    found = windows(OpCall(op), _value(op.inputs[0]).extents[2:], kernel)
    points = math.prod(
        (k - 1) * d + 1 for k, d in zip(kernel, found.dilations, strict=True)
    )
    if max(found.begin[1], found.end[1]) > MOST_PADS:
        return f"it has more than {MOST_PADS} columns of padding"
    return _too_large(needs(points, math.prod(kernel)), config)


def _too_large(needed: Mapping[str, int], config: VTAConfig) -> str:
    """Why the machine has no room for a smallest block; empty if it has."""
    for scope, count in needed.items():
        depth = elements(config)[scope].depth
        if count > depth:
            return f"one window needs {count} elements of {scope}, and the machine has {depth}"
    return ""


def _value(v: Any) -> Value:
    assert isinstance(v, Value)
    return v
