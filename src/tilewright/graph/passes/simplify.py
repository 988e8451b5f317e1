"""Graph clean-up: constants folded, no-ops and repetitions removed, BatchNorm folded into Conv.

Each pass takes a Graph and returns one with the same meaning (BatchNorm folding: within the stated
tolerance; `--math exact` leaves it out).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.base import events
from tilewright.graph.infer import IMPURE, Fallback, run_operation
from tilewright.graph.nodes import Graph, Operation, Value, constant
from tilewright.graph.ops.registry import native_dtype

FOLD_BYTES = 64 << 20  # a folded result may be this large, or as large as what it was made from


def fold_constants(graph: Graph, fallback: Fallback | None = None) -> Graph:
    """Operations on constants become constants, up to a size."""
    constants = dict(graph.constants)
    operations: list[Operation] = []
    for op in graph.operations:
        arrays = None
        if not op.subgraphs and op.qualified not in IMPURE and _foldable(op, constants):
            given = [None if v is None else constants[v] for v in op.inputs]
            arrays = run_operation(op, given, fallback)
        if arrays is None or not all(isinstance(a, np.ndarray) for a in arrays):
            operations.append(op)
            continue
        events.emit("fold", node=op.label)
        for v, a in zip(op.outputs, arrays, strict=False):
            if v is not None:
                constants[v] = a
    return graph.with_operations(operations, constants)


def fold_empty(graph: Graph) -> Graph:
    """Results without elements become constants: nothing has to compute them."""
    constants = dict(graph.constants)
    operations: list[Operation] = []
    for op in graph.operations:
        empty = [v for v in op.writes if v.static and native_dtype(v.dtype) and 0 in v.extents]
        for v in empty:
            assert v.dtype is not None
            constants[v] = np.zeros(v.extents, v.dtype.numpy)
        if len(empty) < len(op.writes) or not op.writes:
            # A split keeps its number of results; those without elements get other names.
            swap = {v: replace(v, name=f"{v.name}/empty") for v in empty}
            outputs = tuple(None if v is None else swap.get(v, v) for v in op.outputs)
            operations.append(replace(op, outputs=outputs) if empty else op)
    return graph.with_operations(operations, constants)


def _foldable(op: Operation, constants: Mapping[Value, Any]) -> bool:
    if not all(v in constants for v in op.reads) or not all(v.static for v in op.writes):
        return False
    made = sum(_nbytes(v) for v in op.writes)
    limit = max(FOLD_BYTES, sum(int(constants[v].nbytes) for v in op.reads))
    return made <= limit


def _nbytes(v: Value) -> int:
    size = 1 if v.dtype is None else v.dtype.itemsize
    for extent in v.extents:
        size *= extent
    return size


def remove_no_ops(graph: Graph) -> Graph:
    """Identity, Dropout at inference, casts to the same type, transposes and reshapes to itself."""
    swap: dict[Value, Value] = {}
    kept: list[Operation] = []
    for op in graph.operations:
        op = renamed(op, swap)
        source = op.inputs[0] if op.inputs else None
        target = op.outputs[0]
        # What leaves the model keeps its own value.
        keep = source is None or target is None or target in graph.outputs
        if keep or not _is_no_op(op, source, target):  # type: ignore[arg-type]
            kept.append(op)
        else:
            assert source is not None and target is not None
            swap[target] = source
    return graph.with_operations(kept)


def _is_no_op(op: Operation, source: Value, target: Value) -> bool:
    if any(v is not None for v in op.outputs[1:]):
        return False
    if op.qualified == "Identity":
        return source.kind == target.kind
    if op.qualified == "Dropout":
        training = op.inputs[2] if len(op.inputs) > 2 else None
        return training is None and op.version >= 7
    same = source.static and target.static and source.shape == target.shape
    if op.qualified in ("Cast", "Reshape", "Expand", "Flatten", "Squeeze", "Unsqueeze"):
        return same and source.dtype is target.dtype
    if op.qualified == "Transpose":
        perm = op.attributes.get("perm")
        return perm is not None and list(perm) == list(range(len(perm)))
    return False


def renamed(op: Operation, swap: Mapping[Value, Value]) -> Operation:
    """`op` reading other values; subgraphs keep their own names, so their captures stay."""
    if not any(v in swap for v in op.inputs if v is not None):
        return op
    return replace(op, inputs=tuple(None if v is None else swap.get(v, v) for v in op.inputs))


def merge_repeated(graph: Graph) -> Graph:
    """Common subexpressions: one operation for all with the same operands and attributes."""
    swap: dict[Value, Value] = {}
    seen: dict[tuple[Any, ...], Operation] = {}
    kept: list[Operation] = []
    captured = {v for op in graph.operations for g in op.subgraphs for v in g.captured}
    for op in graph.operations:
        op = renamed(op, swap)
        if op.subgraphs or op.qualified in IMPURE or any(v in graph.outputs for v in op.writes):
            kept.append(op)
            continue
        key = (op.qualified, op.version, op.inputs, _attributes(op), len(op.outputs))
        twin = seen.get(key)
        pairs = [] if twin is None else list(zip(op.outputs, twin.outputs, strict=True))
        same = all(a is None or (b is not None and a.kind == b.kind) for a, b in pairs)
        if twin is None or not same or any(v in captured for v in op.writes):
            seen.setdefault(key, op)
            kept.append(op)
            continue
        swap |= {a: b for a, b in pairs if a is not None and b is not None}
    return graph.with_operations(kept)


def _attributes(op: Operation) -> tuple[Any, ...]:
    def frozen(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return (value.dtype.str, value.shape, value.tobytes())
        return repr(value)

    return tuple((k, frozen(v)) for k, v in sorted(op.attributes.items()))


def remove_unused(graph: Graph) -> Graph:
    """Operations whose results nothing needs."""
    needed = set(graph.outputs)
    kept: list[Operation] = []
    for op in reversed(graph.operations):
        if any(v in needed for v in op.writes):
            kept.append(op)
            needed.update(op.reads)
    return graph.with_operations(kept[::-1])


def fold_batchnorm(graph: Graph) -> Graph:
    """Conv followed by BatchNormalization on constants is one Conv with other weights."""
    constants = dict(graph.constants)
    swap: dict[Operation, Operation | None] = {}
    for op in graph.operations:
        if op.qualified != "BatchNormalization" or len(op.writes) != 1:
            continue
        x = op.inputs[0]
        conv = graph.producer(x) if x is not None else None
        if conv is None or conv.qualified != "Conv" or conv in swap or x in graph.outputs:
            continue
        if x is None or len(graph.users(x)) != 1 or not _known(conv.inputs[1:], constants):
            continue
        if not _known(op.inputs[1:], constants):
            continue
        swap[conv] = None
        swap[op] = _folded(conv, op, constants)
        events.emit("fold", node=op.label)
    if not swap:
        return graph
    operations = [swap.get(op, op) for op in graph.operations]
    return graph.with_operations([op for op in operations if op is not None], constants)


def _known(values: tuple[Value | None, ...], constants: Mapping[Value, Any]) -> bool:
    return all(v is None or v in constants for v in values)


def _folded(conv: Operation, norm: Operation, constants: dict[Value, Any]) -> Operation:
    scale, bias, mean, var = (constants[v].astype(np.float64) for v in norm.inputs[1:5] if v)
    factor = scale / np.sqrt(var + float(norm.attributes.get("epsilon", 1e-5)))
    weight_value = conv.inputs[1]
    assert weight_value is not None
    weight = constants[weight_value]
    old = conv.inputs[2] if len(conv.inputs) > 2 else None
    shift = (
        bias - mean * factor + (0 if old is None else constants[old].astype(np.float64) * factor)
    )
    new_weight = np.empty_like(weight)
    # In float64, but without a copy of the weights in it.
    np.multiply(
        weight, factor.reshape(-1, *[1] * (weight.ndim - 1)), out=new_weight, casting="same_kind"
    )
    w = constant(f"{weight_value.name}/folded", new_weight)
    b = constant(f"{weight_value.name}/bias", shift.astype(weight.dtype))
    constants[w], constants[b] = new_weight, shift.astype(weight.dtype)
    return replace(
        conv, inputs=(conv.inputs[0], w, b), outputs=norm.outputs, name=conv.name or norm.name
    )
