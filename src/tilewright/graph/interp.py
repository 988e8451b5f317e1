"""The graph interpreter: operators run one by one by their NumPy references.

It is the judge of what a model means. In float64 it is the judge of how exact a compiled model is:
every float of 16 bits or more is kept, and computed, in float64.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.base.dtypes import dtype_of
from tilewright.base.errors import InputError, TilewrightError, UnsupportedError
from tilewright.base.text import did_you_mean
from tilewright.graph.infer import Fallback, run_operation
from tilewright.graph.nodes import Graph, Operation, Value

_CASTS = ("Cast", "CastLike")


def evaluate(
    graph: Graph,
    inputs: Mapping[str, Any],
    *,
    float64: bool = False,
    fallback: Fallback | None = None,
) -> list[Any]:
    """The outputs of `graph`, in order.

    inputs: arrays by name. float64: compute and return floats in float64; integers stay what they
    are. fallback: runs operators whose definition has no reference. Raises InputError for a wrong
    name, UnsupportedError for an operator that nothing can run.
    """
    by_name = {v.name: v for v in graph.inputs}
    for name in inputs:
        if name not in by_name:
            raise InputError(
                f"the model has no input {name!r}", hint=did_you_mean(name, list(by_name))
            )
    missing = [name for name in by_name if name not in inputs]
    if missing:
        raise InputError(f"the inputs {', '.join(missing)} are missing")
    widen = _wide if float64 else _same
    known: dict[Value, Any] = {v: widen(a) for v, a in graph.constants.items()}
    known |= {v: widen(inputs[name]) for name, v in by_name.items()}
    uses = Counter(v for op in graph.operations for v in op.reads)
    uses.update(graph.outputs)
    for op in graph.operations:
        results = _run(op, known, float64, fallback)
        known |= {v: widen(r) for v, r in zip(op.outputs, results) if v is not None}
        for v in op.reads:
            uses[v] -= 1
            if not uses[v]:
                del known[v]
    return [known[v] for v in graph.outputs]


def _run(
    op: Operation, known: Mapping[Value, Any], float64: bool, fallback: Fallback | None
) -> list[Any]:
    operands = [*op.inputs, *(v for v in op.reads if v not in op.inputs)]
    arrays = [None if v is None else known[v] for v in operands]
    if float64 and op.op_type in _CASTS and not op.domain:
        source = arrays[0]
        if isinstance(source, np.ndarray) and source.dtype.kind in "fiub" and _to_float(op):
            return [source.astype(np.float64)]
    try:
        results = run_operation(op, arrays, fallback)
    except (TilewrightError, TypeError, ValueError, KeyError):
        if not float64:
            raise
        # Some operators take their declared types only.
        results = run_operation(op, _declared(operands, arrays), fallback)
    if results is None:
        raise UnsupportedError(
            f"{op.qualified} has no reference", where=f"node {op.label!r}", items=[op.qualified]
        )
    return results


def _to_float(cast: Operation) -> bool:
    """Whether a cast is to a float that is kept in float64 anyway."""
    target = cast.outputs[0].dtype if cast.outputs[0] is not None else None
    return target is not None and target.is_float and target.bits >= 16


def _wide(value: Any) -> Any:
    """Floats of 16 bits or more as float64; anything else as it is."""
    if not isinstance(value, np.ndarray | np.generic):
        return value
    array = np.asarray(value)
    dtype = dtype_of(array.dtype)
    return array.astype(np.float64) if dtype.is_float and dtype.bits >= 16 else array


def _same(value: Any) -> Any:
    return value


def _declared(operands: list[Value | None], arrays: list[Any]) -> list[Any]:
    return [
        a.astype(v.dtype.numpy)
        if v is not None and v.dtype is not None and isinstance(a, np.ndarray) and v.dtype.is_float
        else a
        for v, a in zip(operands, arrays)
    ]
