"""Conversion of types between ONNX's protobufs and the Graph's Values."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx

from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.base.errors import ModelError
from tilewright.graph.nodes import Shape, Value

_NAMES = {
    "FLOAT": "float32",
    "DOUBLE": "float64",
    "BOOL": "bool",
    "STRING": "string",
    "FLOAT8E4M3FN": "float8_e4m3fn",
    "FLOAT8E4M3FNUZ": "float8_e4m3fnuz",
    "FLOAT8E5M2": "float8_e5m2",
    "FLOAT8E5M2FNUZ": "float8_e5m2fnuz",
    "FLOAT8E8M0": "float8_e8m0fnu",
    "FLOAT4E2M1": "float4_e2m1fn",
    "FLOAT6E2M3": "float6_e2m3fn",
    "FLOAT6E3M2": "float6_e3m2fn",
}


def domain_of(proto: Any) -> str:
    """The domain of a node, a function or an opset import; "" for ONNX's default domain."""
    if proto.domain == "ai.onnx":
        return ""
    return str(proto.domain)


def qualified(node: Any) -> str:
    """The operator of a node with its domain, as `Operation.qualified`."""
    domain = domain_of(node)
    return f"{domain}::{node.op_type}" if domain else str(node.op_type)


@cache
def _tables() -> tuple[dict[int, DType], dict[DType, int]]:
    known = {d.name: d for d in dtypes.ALL}
    forward: dict[int, DType] = {}
    for name, number in onnx.TensorProto.DataType.items():
        found = known.get(_NAMES.get(name, name.lower()))
        if found is not None:
            forward[number] = found
    return forward, {d: n for n, d in forward.items()}


def dtype_from_onnx(number: int, where: str) -> DType:
    """The dtype with this `TensorProto.DataType` number. Raises ModelError for an unknown one."""
    found = _tables()[0].get(number)
    if found is None:
        raise ModelError(f"element type {number} is not defined by ONNX", where=where)
    return found


def dtype_to_onnx(dtype: DType) -> int:
    """The `TensorProto.DataType` number of `dtype`."""
    return _tables()[1][dtype]


def value_from_onnx(name: str, proto: Any, *, negative: bool = False) -> Value:
    """A Value named `name` with the type of a TypeProto (None or empty: unknown).

    negative: whether a negative extent is an unknown one, as some exporters write it. Raises
    ModelError for one otherwise, and for an unknown element type.
    """
    kinds: list[str] = []
    while proto is not None:
        which = proto.WhichOneof("value")
        if which in ("sequence_type", "optional_type"):
            kinds.append(which.removesuffix("_type"))
            proto = getattr(proto, which).elem_type
        elif which == "map_type":
            kinds.append("map")
            proto = proto.map_type.value_type
        else:
            break
    kind = ".".join(kinds) or "tensor"
    if proto is None or which not in ("tensor_type", "sparse_tensor_type"):
        return Value(name, kind=kind)
    tensor = getattr(proto, which)
    where = f"tensor {name!r}"
    if tensor.elem_type:
        dtype = dtype_from_onnx(tensor.elem_type, where)
    else:
        dtype = None
    shape = None
    if tensor.HasField("shape"):
        shape = tuple(_extent(d, where, negative) for d in tensor.shape.dim)
    return Value(name, dtype, shape, kind)


def _extent(dim: Any, where: str, negative: bool) -> int | str | None:
    match dim.WhichOneof("value"):
        case "dim_value":
            if dim.dim_value < 0:
                if negative:
                    return None
                raise ModelError(f"an extent is negative: {dim.dim_value}", where=where)
            return int(dim.dim_value)
        case "dim_param":
            return str(dim.dim_param) or None
    return None


def type_to_onnx(value: Value) -> Any:
    """The TypeProto of a Value; empty if nothing is known."""
    proto = onnx.TypeProto()
    if value.dtype is None:
        return proto
    inner = proto
    for part in value.kind.split("."):
        match part:
            case "sequence":
                inner = inner.sequence_type.elem_type
            case "optional":
                inner = inner.optional_type.elem_type
            case "map":
                return onnx.TypeProto()  # the key's type is not kept
    inner.tensor_type.elem_type = dtype_to_onnx(value.dtype)
    if value.shape is not None:
        _write_shape(inner.tensor_type.shape, value.shape)
    return proto


def _write_shape(proto: Any, shape: Shape) -> None:
    proto.SetInParent()
    for extent in shape:
        dim = proto.dim.add()
        if isinstance(extent, int):
            dim.dim_value = extent
        elif extent is not None:
            dim.dim_param = extent


def tensor_to_onnx(array: np.ndarray[Any, Any], name: str = "") -> Any:
    """The TensorProto of an array, which may hold strings (dtype object)."""
    proto = onnx.TensorProto()
    proto.name = name
    dtype = dtypes.dtype_of(array.dtype)
    if dtype.is_string:
        proto.data_type = onnx.TensorProto.STRING
        proto.dims.extend(array.shape)
        proto.string_data.extend(str(s).encode() for s in array.reshape(-1))
        return proto
    return onnx.numpy_helper.from_array(np.asarray(array), name)
