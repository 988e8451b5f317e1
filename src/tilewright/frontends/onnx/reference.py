"""Host fallbacks: every ONNX operator by `onnx.reference`, with ONNX's type inference.

`graph` consults `OnnxFallback` for operators without a definition; `serialize` stores such an
operator in an artifact, and `hosted` turns it back into a kernel.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
import onnx

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import dtype_of
from tilewright.base.errors import ExecutionError
from tilewright.frontends.onnx import functions
from tilewright.frontends.onnx.export import (
    operation_to_model,
    operation_to_onnx,
    versions,
)
from tilewright.frontends.onnx.protos import (
    tensor_to_onnx,
    type_to_onnx,
    value_from_onnx,
)
from tilewright.graph import interp
from tilewright.graph.control import is_control
from tilewright.graph.nodes import Operation, Value
from tilewright.graph.ops.errors import definition_of_node, place
from tilewright.graph.ops.registry import Array, OpCall, lookup

PROVIDER = "onnx"
DATA_ELEMENTS = 4096  # largest constants that type inference may read

Kernel = Callable[[Sequence[Any]], list[Any]]


@dataclass
class OnnxFallback:
    """Types and results of operators from the onnx package."""

    _known: dict[tuple[str, str, int], bool] = field(default_factory=dict)

    def knows(self, op: Operation) -> bool:
        """Whether there is a host fallback for that operator and version."""
        key = (op.domain, op.op_type, op.version)
        if key not in self._known:
            self._known[key] = _has_kernel(op)
        return self._known[key]

    def infer(
        self, op: Operation, known: Mapping[Value, Array]
    ) -> Sequence[Value | None]:
        """The outputs of `op` with types as far as ONNX's shape inference finds them."""
        schema = functions.schema_of(op.op_type, op.domain, op.version)
        if schema is None or not schema.has_type_and_shape_inference_function:
            return op.outputs
        node = operation_to_onnx(op)
        types = {v.name: type_to_onnx(v) for v in op.reads}
        data = {
            v.name: tensor_to_onnx(known[v], v.name)
            for v in op.reads
            if v in known and known[v].size <= DATA_ELEMENTS
        }
        opsets = [onnx.helper.make_opsetid(d, n) for d, n in versions([op]).items()]
        try:
            found = onnx.shape_inference.infer_node_outputs(
                schema, node, types, data, opset_imports=opsets
            )
        except (
            onnx.shape_inference.InferenceError,
            RuntimeError,
            ValueError,
            KeyError,
        ):
            return op.outputs
        except onnx.checker.ValidationError:
            # Our definition may support more element types, as in a graph evaluated in float64.
            if lookup(op.op_type, op.domain, op.version) is None:
                raise
            return op.outputs
        return [
            v
            if v is None or v.name not in found
            else value_from_onnx(v.name, found[v.name])
            for v in op.outputs
        ]

    def run(self, op: Operation, arrays: Sequence[Any]) -> list[Any] | None:
        """The results on arrays, one per entry of `op.inputs`, then one per captured value."""
        if is_control(op):
            return interp.run_on(op, arrays, self)
        if not self.knows(op):
            return None
        return kernel_of(operation_to_model(op), op)(arrays)


def _has_kernel(op: Operation) -> bool:
    definition = lookup(op.op_type, op.domain, op.version)
    if definition is not None and definition.reference is not None:
        return True
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import RuntimeContextError

    # Look up only the kernel's class: constructing a kernel needs the attributes' defaults.
    evaluator = ReferenceEvaluator.__new__(ReferenceEvaluator)
    evaluator.opsets_ = {"": op.version, op.domain: op.version}
    evaluator.new_ops_ = {}
    evaluator.functions_ = {}
    try:
        evaluator._load_impl(onnx.NodeProto(op_type=op.op_type, domain=op.domain))
    except RuntimeContextError:
        return True  # a function body that depends on the types
    except (NotImplementedError, RuntimeError, ValueError, KeyError):
        return False
    return True


def captured(op: Operation) -> tuple[Value, ...]:
    """The values read only by the subgraphs of `op`: further inputs of its kernel."""
    own = set(op.inputs)
    return tuple(v for v in op.reads if v not in own)


def serialize(op: Operation) -> dict[str, Any]:
    """A host step as JSON, for `make`.

    The kernel takes one array per entry of `op.inputs`, then one per value of `captured(op)`.
    """
    model = operation_to_model(op)
    return {
        "model": base64.b64encode(model.SerializeToString()).decode("ascii"),
        "version": op.version,
    }


def kernel_of(model: Any, op: Operation) -> Kernel:
    """A callable from a list of inputs (None if omitted) to the list of outputs."""
    definition = lookup(op.op_type, op.domain, op.version)
    if definition is None or definition.reference is None:
        return _onnx_kernel(model, op)
    reference = definition.reference
    call = OpCall(op)

    def run(arrays: Sequence[Any]) -> list[Any]:
        says = "its reference failed"
        with definition_of_node(op, says, ExecutionError), np.errstate(all="ignore"):
            found = reference(call, *arrays)
        if found is None:
            return _onnx_kernel(model, op)(arrays)
        return list(found)

    return run


def operands_of(model: Any) -> list[str]:
    """The names of the kernel's inputs, empty for an omitted one."""
    own = list(model.graph.node[0].input)
    return own + [i.name for i in model.graph.input if i.name not in set(own)]


def _onnx_kernel(model: Any, op: Operation) -> Kernel:
    from onnx.reference import ReferenceEvaluator

    names = operands_of(model)
    wanted = [o.name for o in model.graph.output]
    definition = lookup(op.op_type, op.domain, op.version)
    with definition_of_node(op, "there is no host fallback", ExecutionError):
        if definition is not None and definition.newest is not None:
            model = operation_to_model(definition.newest(op))
        evaluator = ReferenceEvaluator(model)

    def run(arrays: Sequence[Any]) -> list[Any]:
        feeds = {n: a for n, a in zip(names, _accepted(op, arrays), strict=False) if n}
        says = "its host fallback failed"
        with definition_of_node(op, says, ExecutionError), np.errstate(all="ignore"):
            results = dict(zip(wanted, evaluator.run(wanted, feeds), strict=True))
        return [None if v is None else _tidy(results[v.name], v) for v in op.outputs]

    return run


# The operand that is a position in the sequence, and whether it may be one past the end.
_POSITIONS = {
    "SequenceAt": (1, False),
    "SequenceErase": (1, False),
    "SequenceInsert": (2, True),
}


def _accepted(op: Operation, arrays: Sequence[Any]) -> Sequence[Any]:
    """Operands in the form that the onnx package's kernel takes.

    Raises ExecutionError for a position outside a sequence, and for sizes that do not add up, as
    Python's lists and slices are lenient there.
    """
    if op.qualified == "SplitToSequence" and len(arrays) > 1 and arrays[1] is not None:
        sizes = np.asarray(arrays[1])
        _check_sizes(op, arrays[0], sizes)
    if op.qualified == "NonMaxSuppression":  # its numbers may be scalars
        return [
            *arrays[:2],
            *(None if a is None else np.atleast_1d(a) for a in arrays[2:]),
        ]
    which, behind = _POSITIONS.get(op.qualified, (len(arrays), False))
    if which >= len(arrays) or arrays[which] is None:
        return arrays
    at = int(np.asarray(arrays[which]).reshape(-1)[0])
    count = len(arrays[0])
    if not -count <= at < count + behind:
        raise ExecutionError(
            f"position {at} is out of range for a sequence of {count}", where=place(op)
        )
    # The kernel treats the position after the last as the first.
    if at < count:
        return arrays
    return [*arrays[:which], None, *arrays[which + 1 :]]


def _check_sizes(op: Operation, x: Any, sizes: Any) -> None:
    extent = x.shape[int(op.attributes.get("axis", 0))]
    if not sizes.ndim:
        good = int(sizes) > 0
    else:
        good = (sizes >= 0).all() and sizes.sum() == extent
    if not good:
        raise ExecutionError(
            f"the sizes {sizes.tolist()} do not split {extent}", where=place(op)
        )


def _tidy(result: Any, value: Value) -> Any:
    """A NumPy array of the declared dtype if the operator returns a tensor."""
    if isinstance(result, np.generic | int | float):
        result = np.asarray(result)
    if (
        not isinstance(result, np.ndarray)
        or value.kind != "tensor"
        or value.dtype is None
    ):
        return result
    if value.dtype.is_string or dtype_of(result.dtype) is value.dtype:
        return result
    return result.astype(value.dtype.numpy)
