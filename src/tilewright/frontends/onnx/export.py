"""Graph to ONNX: standard models for any runtime, and any Graph for Netron and host fallbacks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx

from tilewright.base.errors import UnsupportedError
from tilewright.base.names import fresh
from tilewright.frontends.extents import metadata_of
from tilewright.frontends.onnx.attributes import AS_JSON
from tilewright.frontends.onnx.functions import schema_of
from tilewright.frontends.onnx.opsets import common_opsets, every_operation
from tilewright.frontends.onnx.protos import tensor_to_onnx, type_to_onnx
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.verify import verify

IR_VERSION = 10
# The oldest widely supported IR version whose initializers need not be inputs.
OLDEST_IR_VERSION: Final = 8
INTERNAL: Final = "tilewright"  # the domain of this compiler's internal operators

# Returns the TensorProto of a constant with that name.
Store = Callable[[np.ndarray[Any, Any], str], Any]


def to_onnx(
    graph: Graph, *, name: str | None = None, store: Store | None = None
) -> Any:
    """The standard `onnx.ModelProto` of a graph: any runtime with its operators can run it.

    Inputs and outputs keep their names; constants become initializers; the extents for which the
    graph is made are in the model's metadata (`frontends/extents.py`). name: the graph's name
    (default: its own). store: writes a constant's TensorProto elsewhere (default: in the model).

    Raises UnsupportedError for operators that are neither ONNX's nor a user's, or that no single
    opset has; ModelError for an ill-formed graph.
    """
    verify(graph)
    check_standard(graph)
    converted, opsets = common_opsets(graph)
    proto = graph_to_onnx(converted, store)
    proto.name = name or graph.name
    model = _model(proto, opsets)
    pairs = [onnx.helper.make_opsetid(d, v) for d, v in opsets.items()]
    needed = onnx.helper.find_min_ir_version_for(pairs, ignore_unknown=True)
    model.ir_version = max(OLDEST_IR_VERSION, needed)
    for key, said in metadata_of(graph).items():
        model.metadata_props.add(key=key, value=said)
    return model


def are_standard(operations: Sequence[Operation]) -> bool:
    """Whether `to_onnx` can write all of these operators."""
    return all(map(_is_standard, operations))


def _is_standard(op: Operation) -> bool:
    if op.domain:
        return op.domain != INTERNAL
    return schema_of(op.op_type, "", op.version) is not None


def check_standard(graph: Graph) -> None:
    """Raise UnsupportedError naming each operator and type that ONNX does not have."""
    problems: dict[str, None] = {}
    for op in every_operation(graph):
        if not _is_standard(op):
            problems[f"{op.qualified} (node {op.label!r})"] = None
    for v in (*graph.inputs, *graph.outputs):
        if v.kind.endswith("map"):
            problems[f"{v.kind} {v.name!r}: the type of its keys is not known"] = None
    if problems:
        raise UnsupportedError(
            f"ONNX has no form of {'; '.join(problems)}",
            items=problems,
            hint="Export the graph before the passes of the compiler that create these",
        )


def to_model(graph: Graph) -> Any:
    """The ModelProto of any graph, including the compiler's own operators, unchanged."""
    return _model(graph_to_onnx(graph), versions(graph.operations))


def operation_to_model(
    op: Operation, constants: Mapping[Value, Any] | None = None
) -> Any:
    """A model with one node. Its inputs are those of `op.reads` that are not constants."""
    known = constants or {}
    graph = onnx.GraphProto(name="operation")
    graph.node.append(operation_to_onnx(op))
    for v in op.reads:
        if v in known:
            graph.initializer.append(tensor_to_onnx(known[v], v.name))
        else:
            graph.input.append(_info(v))
    graph.output.extend(_info(v) for v in op.writes)
    opsets = versions([op])
    return _model(graph, opsets)


def versions(operations: Sequence[Operation]) -> dict[str, int]:
    """For each domain, the opset in which every operation means what its version says.

    A version is the last one up to the model's opset, so the newest of them is enough.
    """
    found: dict[str, int] = {"": 1}
    for op in operations:
        found[op.domain] = max(found.get(op.domain, 1), op.version)
        for g in op.subgraphs:
            for domain, version in versions(g.operations).items():
                found[domain] = max(found.get(domain, 1), version)
    return found


def graph_to_onnx(graph: Graph, store: Store | None = None) -> Any:
    """The GraphProto, with values identified by their names. store: as in `to_onnx`."""
    store = store or tensor_to_onnx
    proto = onnx.GraphProto(name=graph.name)
    proto.input.extend(_info(v) for v in graph.inputs)
    proto.output.extend(_info(v) for v in graph.shown_outputs)
    proto.initializer.extend(store(a, v.name) for v, a in graph.constants.items())
    proto.node.extend(operation_to_onnx(op, store) for op in graph.operations)
    taken: set[str] = set()
    for (
        node
    ) in proto.node:  # names must be unique, but parts of a rewrite may share one
        node.name = node.name and fresh(taken, node.name)
    return proto


def operation_to_onnx(op: Operation, store: Store | None = None) -> Any:
    """The NodeProto, with values identified by their names. store: as in `to_onnx`."""
    node = onnx.NodeProto(op_type=op.op_type, domain=op.domain, name=op.name)
    node.input.extend("" if v is None else v.name for v in op.inputs)
    node.output.extend("" if v is None else v.name for v in op.outputs)
    for name, value in op.attributes.items():
        node.attribute.append(_attribute(name, value, op, store))
    return node


def _attribute(name: str, value: Any, op: Operation, store: Store | None) -> Any:
    if isinstance(value, Graph):
        return onnx.helper.make_attribute(name, graph_to_onnx(value, store))
    if isinstance(value, np.ndarray):
        return onnx.helper.make_attribute(name, tensor_to_onnx(value))
    if isinstance(value, list | tuple) and not value:
        kind = _schema_kind(op, name)
        return onnx.helper.make_attribute(name, [], attr_type=kind)
    if op.domain == INTERNAL and not _has_kind(value):
        return onnx.helper.make_attribute(name, json.dumps(value), AS_JSON)
    return onnx.helper.make_attribute(name, value)


def _has_kind(value: Any) -> bool:
    """Whether ONNX has a kind for an attribute of the compiler's own operators."""
    if not isinstance(value, list | tuple):
        return value is not None
    return all(isinstance(x, int | float) for x in value)


def _schema_kind(op: Operation, name: str) -> int:
    """The element type of an empty list; ints unless the schema says otherwise."""
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
