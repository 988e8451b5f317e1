"""AttributeProtos as Python values; the caller converts subgraphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx

from tilewright.base.errors import ModelError
from tilewright.frontends.onnx import tensors
from tilewright.frontends.onnx.external import ExternalData

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

    Raises ModelError for a kind of attribute that ONNX does not define.
    """
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
