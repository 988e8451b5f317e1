"""Failing programs as the source of a test: models as text, arrays exactly."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import onnx
from onnx import numpy_helper, parser, printer

from tilewright.frontends.onnx.export import to_model
from tilewright.graph.nodes import Graph

Array = np.ndarray[Any, Any]
SHORT: Final = 24  # elements that are written as numbers
READABLE: Final = ("float32", "float64", "int8", "uint8", "int32", "int64", "bool")


def case(graph: Graph, inputs: Mapping[str, Array]) -> str:
    """Statements that make `model`, an ONNX model, and `inputs`, a dict of arrays."""
    return model(to_model(graph)) + arrays("inputs", inputs)


def model(proto: onnx.ModelProto) -> str:
    """Statements that make `model`; its weights are next to the text."""
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    weights = {t.name: numpy_helper.to_array(t) for t in bare.graph.initializer}
    del bare.graph.initializer[:]
    text = printer.to_text(bare)
    if not _reads(text, bare):
        return f"model = onnx.load_from_string({_bytes(proto.SerializeToString())})\n"
    lines = [f"model = onnx.parser.parse_model('''\\\n{text}''')\n"]
    if weights:
        lines.append(arrays("weights", weights))
        lines.append("model.graph.initializer.extend(\n")
        lines.append(
            "    numpy_helper.from_array(a, name) for name, a in weights.items()\n)\n"
        )
    return "".join(lines)


def _reads(text: str, proto: onnx.ModelProto) -> bool:
    """Whether the text, in quotes, is all of the model."""
    if "'''" in text or "\\" in text:
        return False
    try:
        return bool(parser.parse_model(text) == proto)
    except parser.ParseError:
        return False


def arrays(name: str, values: Mapping[str, Array]) -> str:
    """A statement that makes a dict of arrays."""
    rows = "".join(f"    {key!r}: {array(a)},\n" for key, a in values.items())
    return f"{name} = {{\n{rows}}}\n"


def array(a: Array) -> str:
    """An expression for it: few numbers unchanged, others as their bytes."""
    dtype = a.dtype.name
    if dtype in READABLE and a.size <= SHORT and np.isfinite(a).all():
        return f"np.array({a.tolist()!r}, np.dtype({dtype!r})).reshape({a.shape})"
    if a.dtype == object:
        return f"np.array({a.tolist()!r}, object).reshape({a.shape})"
    return f"np.frombuffer({_bytes(a.tobytes())}, dtype_of({dtype!r}).numpy).reshape({a.shape})"


def _bytes(data: bytes) -> str:
    return f"base64.b64decode({base64.b64encode(data).decode()!r})"
