"""Host fallbacks in an artifact: operators stored as JSON, converted back to kernels."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from tilewright.base.errors import ExecutionError
from tilewright.base.memory import memory_limit
from tilewright.frontends.onnx.attributes import attribute_value
from tilewright.frontends.onnx.external import ExternalData
from tilewright.frontends.onnx.load import load
from tilewright.frontends.onnx.protos import qualified, value_from_onnx
from tilewright.frontends.onnx.reference import (
    PROVIDER,
    Kernel,
    OnnxFallback,
    kernel_of,
    operands_of,
)
from tilewright.graph import interp
from tilewright.graph.control import CONTROL
from tilewright.graph.nodes import Operation
from tilewright.runtime import host


def make(op_type: str, attributes: Mapping[str, Any]) -> Kernel:
    """The kernel of a step described by `serialize`. Raises ExecutionError if it is broken."""
    try:
        model = onnx.ModelProto.FromString(
            base64.b64decode(attributes["model"], validate=True)
        )
        node = model.graph.node[0]
    except Exception as error:
        raise ExecutionError(
            f"its description is broken: {error}", where=op_type
        ) from None
    if qualified(node) in CONTROL:
        return _control_kernel(model)
    version = int(attributes["version"])
    return kernel_of(model, _operation(node, model, version))


def _operation(node: Any, model: Any, version: int) -> Operation:
    """The Operation of a stored node; its subgraphs remain in the model."""
    types = {i.name: i.type for i in (*model.graph.input, *model.graph.output)}
    values = {name: value_from_onnx(name, t) for name, t in types.items()}
    plain = {
        a.name: attribute_value(
            a, lambda g: None, ExternalData.of(None), memory_limit(), a.name
        )
        for a in node.attribute
    }
    return Operation(
        node.op_type,
        tuple(values.get(name) for name in node.input),
        tuple(values.get(name) for name in node.output),
        plain,
        node.domain,
        version,
        node.name,
    )


def _control_kernel(model: Any) -> Kernel:
    """Control flow by our interpreter; the subgraphs are read from the model again."""
    graph = load(model)
    operands = operands_of(model)
    fallback = OnnxFallback()

    def run(arrays: Sequence[Any]) -> list[Any]:
        feeds = {n: a for a, n in zip(arrays, operands, strict=True) if n}
        found = interp.evaluate(graph, feeds, fallback=fallback)
        return [found[v.name] for v in graph.outputs]

    return run


host.register(PROVIDER, make)
