"""The limits of constant folding: whether an operator on constants runs at compile time.

Our references use NumPy and do about as much work as their count of floating-point operations.
ONNX's references are often Python loops, so they may do a thousandth of that. Operators that cost
more, or whose cost is unknown, run as native code at run time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.base import flags, limits
from tilewright.base.dtypes import dtype_of
from tilewright.expr.nodes import Buffer
from tilewright.graph.nodes import Operation, Shape, Value
from tilewright.graph.ops.errors import definition_of_node
from tilewright.graph.ops.registry import (
    Array,
    OpCall,
    OpDef,
    Program,
    definition_of,
    native_dtype,
    program_of,
)
from tilewright.loops.nodes import For, Kernel, Stmt, While

LOOPS_IN_PYTHON = 1000  # how much slower than NumPy


def may_fold(op: Operation, known: Mapping[Value, Array]) -> bool:
    """Whether `op`, whose inputs are all `known`, is cheap enough to run now.

    Its results must have static shapes; producing them counts as work.
    """
    work = folding_work(op, known)
    most = flags.FOLD_WORK.get()
    if work is None or work > most:
        return False
    return limits.fold(sum(_nbytes(v) for v in op.writes))


def as_typed(op: Operation, results: Sequence[Any]) -> list[Array | None] | None:
    """The results as constants for the outputs of `op`; None if they do not fit.

    Later operators were typed by these outputs, so each output that is present needs an array or
    NumPy scalar of its dtype and of its shape, as far as that is known.
    """
    found: list[Array | None] = []
    for n, v in enumerate(op.outputs):
        if v is None:
            found.append(None)
            continue
        r = results[n] if n < len(results) else None
        if not isinstance(r, np.ndarray | np.generic) or v.kind != "tensor":
            return None
        if dtype_of(r.dtype) is not v.dtype or not _has_shape(r.shape, v.shape):
            return None
        found.append(np.asarray(r))
    return found


def _has_shape(found: tuple[int, ...], typed: Shape | None) -> bool:
    if typed is None:
        return True
    known = len(found) == len(typed)
    return known and all(n == d for n, d in zip(found, typed) if isinstance(d, int))


def folding_work(op: Operation, known: Mapping[Value, Array]) -> int | None:
    """The work of running `op` in NumPy operations; None if it is unbounded."""
    elements = sum(known[v].size for v in op.reads) + sum(
        math.prod(v.extents) for v in op.writes
    )
    definition = definition_of(op)
    if definition is None:
        return elements * LOOPS_IN_PYTHON
    if definition.reference is not None:
        return max(elements, _flops(op, definition, known))
    points = _points(op, known, elements)
    return None if points is None else max(elements, points) * LOOPS_IN_PYTHON


def _flops(
    op: Operation,
    definition: OpDef,
    known: Mapping[Value, Array],
) -> int:
    if definition.flops is None:
        return 0
    with definition_of_node(op):
        return definition.flops(OpCall(op, known))


def _points(
    op: Operation,
    known: Mapping[Value, Array],
    elements: int,
) -> int | None:
    """How often the innermost statements of its native form run; None if it has none.

    elements: the assumed trip count of a loop that ends by a condition (those of sorts run at most
    that often).
    """
    if not all(v.static and native_dtype(v.dtype) for v in (*op.reads, *op.writes)):
        return None
    buffers = {
        v: Buffer(v.name, v.extents, v.dtype)
        for v in (*op.reads, *op.writes)
        if v.dtype
    }
    inputs = [None if v is None else buffers[v] for v in op.inputs]
    outputs = [None if v is None else buffers[v] for v in op.outputs]
    program = program_of(op, known, inputs, outputs)
    return None if program is None else _runs(program, elements)


def _runs(program: Program, elements: int) -> int | None:
    runs = [
        _trips(item.body, elements)
        if isinstance(item, Kernel)
        else math.prod(d.extent for d in item.dims) * len(item.outputs)
        for item in program
    ]
    if None in runs:
        return None
    return sum(n for n in runs if n is not None)


def _trips(s: Stmt, elements: int) -> int | None:
    """The number of statements that a run executes; None if a loop's extent is unknown."""
    own = elements if isinstance(s, While) else s.trips if isinstance(s, For) else 1
    inner = [_trips(c, elements) for c in s.children() if isinstance(c, Stmt)]
    if own is None or None in inner:
        return None
    return own * max(sum(n for n in inner if n is not None), 1)


def _nbytes(v: Value) -> int:
    return math.prod(v.extents) * (1 if v.dtype is None else v.dtype.itemsize)
