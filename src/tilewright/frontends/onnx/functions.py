"""Schemas of operators, and the bodies of those that ONNX defines as functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import onnx

from tilewright.base.dtypes import float32, float64
from tilewright.frontends.onnx.protos import type_to_onnx
from tilewright.graph.nodes import Value
from tilewright.graph.ops.padded_attention import DOMAIN, PADDED_ATTENTION

TRAINING: str = onnx.defs.AI_ONNX_PREVIEW_TRAINING_DOMAIN


@cache
def newest_opset(domain: str) -> int:
    """A domain's newest opset in the installed onnx package; 0 for an unknown domain."""
    newest = {
        "": onnx.defs.onnx_opset_version(),
        onnx.defs.ONNX_ML_DOMAIN: onnx.defs.onnx_ml_opset_version(),
        "ai.onnx.preview": 1,
        TRAINING: 1,
    }
    return int(newest.get(domain, 0))


@cache
def schema_of(op_type: str, domain: str, opset: int | None) -> Any:
    """The newest schema up to that opset, or None."""
    if opset is None:
        opset = newest_opset(domain)
    try:
        return onnx.defs.get_schema(op_type, max(0, min(opset, (1 << 31) - 1)), domain)
    except onnx.defs.SchemaError:
        return None


# Uses of functions that we implement as an operator: the inputs that it takes, and when.
_PADDED_ATTENTION = (0, 1, 2, 6)


def own_operator(
    schema: Any,
    node: Any,
    attributes: Mapping[str, Any],
    inputs: Sequence[Value | None],
) -> tuple[Any, tuple[Value | None, ...]] | None:
    """The internal operator, with its inputs, that implements a use of an ONNX function, or None.

    It reads less than the body: for Attention over a cache with `nonpad_kv_seqlen`, only the valid
    keys.
    """
    if (schema.domain, schema.name) != ("", "Attention"):
        return None
    given = tuple(n for n, v in enumerate(inputs) if v is not None)
    if given != _PADDED_ATTENTION or any(node.output[1:]):
        return None
    taken = tuple(inputs[n] for n in given)
    floats = {v.dtype for v in taken[:3] if v is not None}
    if floats not in ({float32}, {float64}) or "softmax_precision" in attributes:
        return None
    call = onnx.NodeProto()
    call.CopyFrom(node)
    call.op_type = PADDED_ATTENTION
    call.domain = DOMAIN
    return call, taken


def body_of(
    schema: Any,
    node: Any,
    attributes: Mapping[str, Any],
    inputs: Sequence[Value | None],
    opsets: Mapping[str, int],
) -> Any:
    """The FunctionProto that defines this use of an operator, or None.

    Defaults of attributes are filled in, since a body refers to attributes by name.
    """
    call = onnx.NodeProto()
    call.CopyFrom(node)
    del call.attribute[:]
    call.attribute.extend(attributes.values())
    version = opsets.get(schema.domain, newest_opset(schema.domain))
    body = None
    if schema.has_function:
        body = _function(schema, version)
    elif schema.has_context_dependent_function:
        if any(v is not None and v.dtype is None for v in inputs):
            return None
        types = [
            (onnx.TypeProto() if v is None else type_to_onnx(v)).SerializeToString()
            for v in inputs
        ]
        body = _context_function(schema, call, types, version)
    if body is None:
        return None
    given = {a.name for a in body.attribute_proto}
    for name, attribute in schema.attributes.items():
        default = attribute.default_value
        if default.name and name not in given and name not in attributes:
            body.attribute_proto.add().CopyFrom(default)
    return body


def _function(schema: Any, version: int) -> Any:
    fitting = [v for v in schema.function_opset_versions if v <= version]
    if not fitting:
        return None
    raw = schema.get_function_with_opset_version(max(fitting))
    return onnx.FunctionProto.FromString(raw) if raw else None


def _context_function(schema: Any, call: Any, types: list[bytes], version: int) -> Any:
    fitting = [
        v for v in schema.context_dependent_function_opset_versions if v <= version
    ]
    if not fitting:
        return None
    try:
        raw = schema.get_context_dependent_function_with_opset_version(
            max(fitting), call.SerializeToString(), types
        )
    except RuntimeError:  # the builder of this body rejects these types
        return None
    return onnx.FunctionProto.FromString(raw) if raw else None
