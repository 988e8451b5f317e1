"""The meaning of a graph: an interpreter in NumPy, operator by operator.

An operator runs by its definition's reference, else by a frontend's fallback, else by interpreting
its Computations (slow); one that draws random numbers with a seed by its Computations first.
`as_float64` returns the same graph in double precision, to measure the error of a float32 result.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.base import dtypes
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ExecutionError, InputError
from tilewright.compute import interp as computations
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.graph.control import is_control, run_control
from tilewright.graph.infer import FallbackProvider, run_operation
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.dtype_numbers import number_of
from tilewright.graph.ops.errors import definition_of_node, place
from tilewright.graph.ops.inside import check_program
from tilewright.graph.ops.registry import Array, Program, has_trait, program_of
from tilewright.graph.ops.traits import IMPURE
from tilewright.graph.specialize import output_types, specialize
from tilewright.loops import interp as kernels

FLOAT32, FLOAT64 = map(number_of, ("float32", "float64"))


def evaluate(
    graph: Graph,
    inputs: Mapping[str, Any],
    *,
    float64: bool = False,
    fallback: FallbackProvider | None = None,
    keep: Callable[[Value], bool] | None = None,
) -> dict[str, Any]:
    """The outputs of `graph` by name, and every inner value selected by `keep`.

    inputs: an array per graph input. float64: compute the model's float32 operations in float64.
    Raises InputError for a missing input, ExecutionError if an operator cannot be run.
    """
    found: dict[str, Any] = {}
    if float64:
        graph = as_float64(graph, fallback)
        inputs = {n: _double(a) for n, a in inputs.items()}
    wanted = set(graph.outputs)
    for value, array in steps(graph, inputs, fallback):
        if value in wanted or (keep is not None and keep(value)):
            found[value.name] = array
    return {**{v.name: found[v.name] for v in graph.outputs}, **found}


def steps(
    graph: Graph,
    inputs: Mapping[str, Any],
    fallback: FallbackProvider | None = None,
) -> Iterator[tuple[Value, Any]]:
    """Every value of the graph with its array, in the order of computation.

    An array is freed after its last use.
    """
    values: dict[Value, Any] = dict(graph.constants)
    for v in graph.inputs:
        if v.name not in inputs:
            raise InputError(
                f"input {v.name!r} is missing", where=f"graph {graph.name!r}"
            )
        values[v] = inputs[v.name]
    yield from list(values.items())
    last = {v: op for op in graph.operations for v in op.reads}
    for op in graph.operations:
        for out, array in zip(op.outputs, run(op, values, fallback), strict=False):
            if out is not None:
                values[out] = array
                yield out, array
        for dead in op.reads:
            if last[dead] is op:
                del values[dead]


def run(
    op: Operation,
    values: Mapping[Value, Any],
    fallback: FallbackProvider | None,
) -> list[Any]:
    """The results of one operation. Raises ExecutionError if it cannot be run."""
    own = set(op.inputs)
    operands = [None if v is None else values[v] for v in op.inputs]
    operands += [values[v] for v in op.reads if v not in own]
    return run_on(op, operands, fallback)


def run_on(
    op: Operation,
    operands: Sequence[Any],
    fallback: FallbackProvider | None,
) -> list[Any]:
    """As `run`, on operands: one per entry of `op.inputs`, then the captured values in order."""
    with definition_of_node(op, "its reference failed", ExecutionError):
        if is_control(op):
            return run_control(op, operands, _Bodies(fallback))
        # With a seed, a fallback would draw other random numbers than compiled code does.
        seeded = has_trait(op, IMPURE) and op.attr("seed") is not None
        found = run_natively(op, operands) if seeded else None
        if found is None:
            found = run_operation(op, operands, fallback)
        if found is None:
            found = run_natively(op, operands)
    if found is None:
        raise ExecutionError(
            "it has neither a reference nor a native form", where=place(op)
        )
    return found


@dataclass(frozen=True)
class _Bodies:
    """Runs the subgraphs of control flow, operator by operator."""

    fallback: FallbackProvider | None

    def run(
        self, body: Graph, inputs: Sequence[Any], outer: Mapping[Value, Any]
    ) -> list[Any]:
        values = dict(zip(body.inputs, inputs, strict=True)) | dict(body.constants)
        whole = ChainMap(values, dict(outer))
        for op in body.operations:
            results = run(op, whole, self.fallback)
            pairs = zip(op.outputs, results, strict=False)
            values |= {v: a for v, a in pairs if v is not None}
        return [whole[v] for v in body.outputs]

    def types(
        self, body: Graph, inputs: Sequence[Any], outer: Mapping[Value, Any]
    ) -> Sequence[Value]:
        shapes = [getattr(a, "shape", None) for a in inputs]
        tensors = {v: a for v, a in outer.items() if isinstance(a, np.ndarray)}
        return output_types(body, shapes, tensors, self.fallback)


def run_natively(
    op: Operation,
    operands: Sequence[Any],
    known: Mapping[Value, Array] | None = None,
) -> list[Any] | None:
    """The results by interpreting the operator's Computations; None if it has none.

    known: the inputs that its definition may see as constants (default: all of them).
    """
    if not all(v is None or v.static for v in (*op.inputs, *op.outputs)):
        return None
    arrays = {
        v: np.asarray(a)
        for v, a in zip(op.inputs, operands, strict=False)
        if v is not None
    }
    buffers = {v: Buffer(v.name, v.extents, _dtype(v)) for v in arrays if v.static}
    outputs = [
        Buffer(v.name, v.extents, _dtype(v)) if v is not None and v.static else None
        for v in op.outputs
    ]
    inputs = [None if v is None else buffers.get(v) for v in op.inputs]
    program = program_of(op, arrays if known is None else known, inputs, outputs)
    if program is None:
        return None
    check_program(op, program, inputs, outputs)
    results = _execute(program, {buffers[v]: a for v, a in arrays.items()})
    return [None if b is None else results[b] for b in outputs]


def _execute(program: Program, arrays: dict[Buffer, Any]) -> dict[Buffer, Any]:
    for step in program:
        if isinstance(step, Computation):
            for tensor, part in computations.evaluate(step, arrays).items():
                arrays[tensor] = (
                    part if tensor not in arrays else _joined(arrays[tensor], part)
                )
        else:
            for b in step.outputs:
                arrays[b] = np.zeros(b.shape, b.dtype.numpy)
            kernels.run(step, arrays)
    return arrays


def _joined(first: Any, second: Any) -> Any:
    """Join two parts of a tensor that several Computations define; each is 0 outside its part."""
    return np.where(second.astype(bool), second, first)


def _dtype(value: Value) -> dtypes.DType:
    assert value.dtype is not None
    return value.dtype


def as_float64(graph: Graph, fallback: FallbackProvider | None = None) -> Graph:
    """`graph` with float64 in place of float32 and retyped."""
    env: dict[Value, Value] = {}

    def wide(value: Value) -> Value:
        if value not in env:
            dtype = dtypes.float64 if value.dtype is dtypes.float32 else value.dtype
            env[value] = replace(value, dtype=dtype)
        return env[value]

    return specialize(_widened(graph, wide), fallback=fallback)


def _widened(graph: Graph, wide: Callable[[Value], Value]) -> Graph:
    operations = [
        replace(
            op,
            inputs=tuple(None if v is None else wide(v) for v in op.inputs),
            outputs=tuple(None if v is None else wide(v) for v in op.outputs),
            attributes={
                k: _attribute(op, k, a, wide) for k, a in op.attributes.items()
            },
        )
        for op in graph.operations
    ]
    return Graph(
        graph.name,
        tuple(map(wide, graph.inputs)),
        tuple(map(wide, graph.outputs)),
        tuple(operations),
        {wide(v): _double(a) for v, a in graph.constants.items()},
    )


def _attribute(
    op: Operation,
    name: str,
    value: Any,
    wide: Callable[[Value], Value],
) -> Any:
    if isinstance(value, Graph):
        return _widened(value, wide)
    if isinstance(value, np.ndarray):
        return _double(value)
    if name in ("to", "dtype", "stash_type", "output_dtype") and value == FLOAT32:
        return FLOAT64
    return value


def _double(array: Any) -> Any:
    if isinstance(array, np.ndarray) and array.dtype == np.float32:
        return array.astype(np.float64)
    return array
