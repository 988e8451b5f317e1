"""Graph cleanup: constant folding, and removal of repeated and unused operations.

Each pass takes a Graph and returns one that computes the same bits. A comment above each check
states the condition that it decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.base import events, limits
from tilewright.base.distinct import DistinctArrays
from tilewright.graph.folding import as_typed, may_fold
from tilewright.graph.infer import FallbackProvider, run_operation
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.registry import has_trait, native_dtype
from tilewright.graph.ops.traits import IMPURE, LATE

FOLD_BYTES = 64 << 20  # a folded result may be this large, or as large as its operands


def fold_constants(
    graph: Graph,
    fallback: FallbackProvider | None = None,
    keep: Collection[str] = (),
) -> Graph:
    """Fold operations on constants, up to a size; operators with the names `keep` stay.

    op(constants) = arrays, and the result is the same in every run (no impure operator; subgraphs
    are not searched for random operators, so operators with subgraphs stay); the arrays have the
    inferred types of the results, from which later types were inferred.
    """
    constants = dict(graph.constants)
    operations: list[Operation] = []
    for op in graph.operations:
        limits.check()
        arrays = results = None
        stays = op.subgraphs or has_trait(op, IMPURE | LATE) or op.qualified in keep
        if not stays and _foldable(op, constants):
            given = [None if v is None else constants[v] for v in op.inputs]
            results = run_operation(op, given, fallback)
        if results is not None:
            arrays = as_typed(op, results)
        if arrays is None:
            operations.append(op)
            continue
        events.emit("fold", node=op.label)
        pairs = zip(op.outputs, arrays, strict=True)
        constants |= {v: a for v, a in pairs if v is not None and a is not None}
    return graph.with_operations(operations, constants)


def fold_empty(graph: Graph) -> Graph:
    """Replace results without elements by constants, as nothing needs to compute them."""
    constants = dict(graph.constants)
    operations: list[Operation] = []
    for op in graph.operations:
        empty = [
            v
            for v in op.writes
            if v.static and native_dtype(v.dtype) and 0 in v.extents
        ]
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
    if not all(v in constants for v in op.reads) or not all(
        v.static for v in op.writes
    ):
        return False
    made = sum(_nbytes(v) for v in op.writes)
    limit = max(FOLD_BYTES, sum(int(constants[v].nbytes) for v in op.reads))
    return made <= limit and may_fold(op, constants)


def _nbytes(v: Value) -> int:
    size = 1 if v.dtype is None else v.dtype.itemsize
    for extent in v.extents:
        size *= extent
    return size


def captured(graph: Graph) -> set[Value]:
    """The values that subgraphs read."""
    return {v for op in graph.operations for g in op.subgraphs for v in g.captured}


def renamed(op: Operation, swap: Mapping[Value, Value]) -> Operation:
    """`op` reading other values; subgraphs keep their own names, so their captures stay."""
    if not any(v in swap for v in op.inputs if v is not None):
        return op
    return replace(
        op, inputs=tuple(None if v is None else swap.get(v, v) for v in op.inputs)
    )


Merged = Callable[[str, str], bool]


def merge_repeated(graph: Graph, merged: Merged | None = None) -> Graph:
    """Common subexpression elimination: merge operations with equal operands and attributes.

    Same operator of the same version, operands, attributes (their types and bits included) and
    result types, no random numbers: same results. Constants of the same type and bits are the same
    operand. Model outputs and results that a subgraph reads remain separate values.

    merged: whether two constants that are equal, by name, may be one; None: they may.
    """
    swap = _equal_constants(graph, merged)
    seen: dict[tuple[Any, ...], Operation] = {}
    kept: list[Operation] = []
    inside = captured(graph)
    for op in graph.operations:
        op = renamed(op, swap)
        fixed = op.subgraphs or any(v in graph.outputs for v in op.writes)
        if fixed or has_trait(op, IMPURE):
            kept.append(op)
            continue
        key = (op.qualified, op.version, op.inputs, _attributes(op), len(op.outputs))
        twin = seen.get(key)
        if twin is None:
            pairs = []
        else:
            pairs = list(zip(op.outputs, twin.outputs, strict=True))
        same = all(
            a is None or (b is not None and _type(a) == _type(b)) for a, b in pairs
        )
        if twin is None or not same or any(v in inside for v in op.writes):
            seen.setdefault(key, op)
            kept.append(op)
            continue
        swap |= {a: b for a, b in pairs if a is not None and b is not None}
    return graph.with_operations(kept)


def _equal_constants(graph: Graph, merged: Merged | None) -> dict[Value, Value]:
    """Map each constant to the first one of the same type and bits.

    Whatever its size: masks that are equal at all sizes of a range are one at each of them.
    """
    arrays = DistinctArrays()
    first: dict[tuple[Any, ...], Value] = {}
    swap: dict[Value, Value] = {}
    for v, array in graph.constants.items():
        if not native_dtype(v.dtype):
            continue
        known = arrays.first(array)
        key = (_type(v), id(known))
        same = first.setdefault(key, v)
        if same is not v and (merged is None or merged(same.name, v.name)):
            swap[v] = same
    return swap


def _type(v: Value) -> tuple[Any, ...]:
    return v.kind, v.dtype, v.shape


def _attributes(op: Operation) -> tuple[Any, ...]:
    def frozen(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return (value.dtype.name, value.shape, _bits(value))
        return repr(value)

    def _bits(value: np.ndarray[Any, Any]) -> Any:
        if value.dtype.hasobject:
            return repr(value.tolist())
        return value.tobytes()

    return tuple((k, frozen(v)) for k, v in sorted(op.attributes.items()))


def remove_unused(graph: Graph) -> Graph:
    """Remove operations whose results are not used."""
    needed = set(graph.outputs)
    kept: list[Operation] = []
    for op in reversed(graph.operations):
        if any(v in needed for v in op.writes):
            kept.append(op)
            needed.update(op.reads)
    return graph.with_operations(kept[::-1])
