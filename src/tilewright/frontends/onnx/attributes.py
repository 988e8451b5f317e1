"""AttributeProtos as Python values; the caller converts subgraphs.

ONNX has no kind for some attributes of the compiler's own operators: None, lists in lists, lists of
several types. They are strings in JSON, marked by their `doc_string`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import onnx

from tilewright.base.errors import ModelError
from tilewright.frontends.onnx import tensors
from tilewright.frontends.onnx.external import ExternalData

# The doc_string of an attribute that ONNX has no kind for; one that no other program writes.
AS_JSON: Final = "tilewright: as JSON"

_Kind = onnx.AttributeProto

_PLAIN: dict[int, Callable[[Any], Any]] = {
    _Kind.FLOAT: lambda a: float(a.f),
    _Kind.INT: lambda a: int(a.i),
    _Kind.STRING: lambda a: _text(a.s),
    _Kind.FLOATS: lambda a: [float(f) for f in a.floats],
    _Kind.INTS: lambda a: [int(i) for i in a.ints],
    _Kind.STRINGS: lambda a: [_text(s) for s in a.strings],
    _Kind.TYPE_PROTO: lambda a: a.tp,
    _Kind.TYPE_PROTOS: lambda a: list(a.type_protos),
}


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def attribute_value(
    proto: Any,
    subgraph: Callable[[Any], Any],
    rules: ExternalData,
    limit: int,
    where: str,
) -> Any:
    """The Python value: int, float, str, a list of them, an array, or a result of `subgraph`.

    Raises ModelError for a kind of attribute that ONNX does not define, and for damaged JSON.
    """
    if proto.doc_string == AS_JSON:
        return _from_json(proto, where)
    if proto.type in _PLAIN:
        return _PLAIN[proto.type](proto)
    match proto.type:
        case _Kind.TENSOR:
            return tensors.to_array(proto.t, rules, limit, where)
        case _Kind.TENSORS:
            return [tensors.to_array(t, rules, limit, where) for t in proto.tensors]
        case _Kind.SPARSE_TENSOR:
            return tensors.from_sparse(proto.sparse_tensor, rules, limit, where)
        case _Kind.GRAPH:
            return subgraph(proto.g)
        case _Kind.GRAPHS:
            return [subgraph(g) for g in proto.graphs]
    raise ModelError(
        f"an attribute of kind {proto.type} is not defined by ONNX", where=where
    )


def _from_json(proto: Any, where: str) -> Any:
    try:
        return json.loads(proto.s)
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"the JSON of attribute {proto.name!r} cannot be read: {error}", where=where
        ) from None


def resolved(protos: Sequence[Any], call: Mapping[str, Any] | None) -> list[Any]:
    """Attributes with references to the call's attributes replaced; absent ones are omitted."""
    found = []
    for a in protos:
        if not a.ref_attr_name:
            found.append(a)
        elif call is not None and a.ref_attr_name in call:
            copy = onnx.AttributeProto()
            copy.CopyFrom(call[a.ref_attr_name])
            copy.name = a.name
            found.append(copy)
    return found
