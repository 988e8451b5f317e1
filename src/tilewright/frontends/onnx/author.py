"""Writing ONNX models from plain functions, and the base classes of ONNX's Backend API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.backend.base import Backend, BackendRep, Device, DeviceType

from tilewright.base.dtypes import DType, dtype_of
from tilewright.frontends.onnx.protos import tensor_to_onnx, type_to_onnx
from tilewright.graph.nodes import Shape, Value

Array = np.ndarray[Any, Any]

# The newest IR version that ONNX Runtime 1.16 and later support.
IR_VERSION = 9


class Author:
    """Writes a model node by node; every method that adds a tensor returns its name."""

    def __init__(self, name: str, opset: int = 17) -> None:
        self._opset = opset
        self._graph = onnx.GraphProto(name=name)

    def input(self, name: str, dtype: DType, shape: Shape) -> str:
        """Add an input."""
        self._graph.input.append(_info(name, dtype, shape))
        return name

    def weight(self, name: str, array: Array) -> str:
        """Add an initializer."""
        self._graph.initializer.append(tensor_to_onnx(array, name))
        return name

    def node(
        self, op_type: str, inputs: Sequence[str], name: str, **attributes: Any
    ) -> str:
        """Add a node with one output, both called `name`."""
        self._graph.node.append(
            helper.make_node(op_type, inputs, [name], name, **attributes)
        )
        return name

    def output(self, name: str, dtype: DType, shape: Shape) -> None:
        """Make the tensor with that name an output."""
        self._graph.output.append(_info(name, dtype, shape))

    def model(self) -> bytes:
        """The serialized model."""
        return bytes(_model(self._graph, self._opset).SerializeToString())


def model_of_node(node: Any, inputs: Sequence[Any], opset: int | None = None) -> Any:
    """A ModelProto with a single NodeProto, typed by the arrays it will run on.

    opset: of the node's domain; by default the newest.
    """
    names = [name for name in node.input if name]
    typed = []
    for name, value in zip(names, inputs):
        array = np.asarray(value)
        dtype = dtype_of(array.dtype)
        typed.append(_info(name, dtype, array.shape))
    results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], node.name or node.op_type, typed, results)
    return _model(graph, opset or onnx.defs.onnx_opset_version(), node.domain)


def _info(name: str, dtype: DType, shape: Shape) -> Any:
    return onnx.ValueInfoProto(name=name, type=type_to_onnx(Value(name, dtype, shape)))


def _model(graph: Any, opset: int, domain: str = "") -> Any:
    opsets = [helper.make_opsetid(domain, opset)]
    model = helper.make_model(graph, opset_imports=opsets, producer_name="tilewright")
    model.ir_version = IR_VERSION if opset <= 20 else onnx.IR_VERSION
    return model


__all__ = ["Author", "Backend", "BackendRep", "Device", "DeviceType", "model_of_node"]
