"""Graph to ONNX: for the host fallbacks, and so that Netron can show a compiler's graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from tilewright.frontends.onnx.protos import tensor_to_onnx, type_to_onnx
from tilewright.graph.nodes import Graph, Operation, Value

IR_VERSION = 10


def to_model(graph: Graph) -> Any:
    """The ModelProto of a graph."""
    return _model(graph_to_onnx(graph), versions(graph.operations))


def operation_to_model(
    op: Operation, constants: Mapping[Value, Any] | None = None
) -> Any:
    """A model of one node. Its inputs are those of `op.reads` that are not constants."""
    known = constants or {}
    graph = onnx.GraphProto(name="operation")
    graph.node.append(operation_to_onnx(op))
    for v in op.reads:
        if v in known:
            graph.initializer.append(tensor_to_onnx(known[v], v.name))
        else:
            graph.input.append(_info(v))
    graph.output.extend(_info(v) for v in op.writes)
    return _model(graph, versions([op]))


def versions(operations: Sequence[Operation]) -> dict[str, int]:
    """For each domain the opset in which every operation means what its version says.

    A version is the last one not after the model's opset, so the newest of them will do.
    """
    found: dict[str, int] = {"": 1}
    for op in operations:
        found[op.domain] = max(found.get(op.domain, 1), op.version)
        for g in op.subgraphs:
            for domain, version in versions(g.operations).items():
                found[domain] = max(found.get(domain, 1), version)
    return found


def graph_to_onnx(graph: Graph) -> Any:
    """The GraphProto, values by their names."""
    proto = onnx.GraphProto(name=graph.name)
    proto.input.extend(_info(v) for v in graph.inputs)
    proto.output.extend(_info(v) for v in graph.outputs)
    proto.initializer.extend(
        tensor_to_onnx(a, v.name) for v, a in graph.constants.items()
    )
    proto.node.extend(operation_to_onnx(op) for op in graph.operations)
    return proto


def operation_to_onnx(op: Operation) -> Any:
    """The NodeProto, values by their names."""
    node = onnx.NodeProto(op_type=op.op_type, domain=op.domain, name=op.name)
    node.input.extend("" if v is None else v.name for v in op.inputs)
    node.output.extend("" if v is None else v.name for v in op.outputs)
    for name, value in op.attributes.items():
        node.attribute.append(_attribute(name, value, op))
    return node


def _attribute(name: str, value: Any, op: Operation) -> Any:
    if isinstance(value, Graph):
        return onnx.helper.make_attribute(name, graph_to_onnx(value))
    if isinstance(value, np.ndarray):
        return onnx.helper.make_attribute(name, tensor_to_onnx(value))
    if isinstance(value, list | tuple) and not value:
        kind = _schema_kind(op, name)
        return onnx.helper.make_attribute(name, [], attr_type=kind)
    return onnx.helper.make_attribute(name, value)


def _schema_kind(op: Operation, name: str) -> int:
    """What kind of list an empty list is; ints where no schema says so."""
    try:
        schema = onnx.defs.get_schema(op.op_type, op.version, op.domain)
        return int(schema.attributes[name].type)
    except (onnx.defs.SchemaError, KeyError):
        return int(onnx.AttributeProto.INTS)


def _info(value: Value) -> Any:
    return onnx.ValueInfoProto(name=value.name, type=type_to_onnx(value))


def _model(graph: Any, opsets: Mapping[str, int]) -> Any:
    model = onnx.ModelProto(
        ir_version=IR_VERSION, graph=graph, producer_name="tilewright"
    )
    for domain, version in opsets.items():
        model.opset_import.add(domain=domain, version=version)
    return model
