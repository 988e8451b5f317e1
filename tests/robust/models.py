"""Small hostile ONNX models, in a line each."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

node = helper.make_node
FLOAT, INT64, INT32, BOOL = (
    TensorProto.FLOAT,
    TensorProto.INT64,
    TensorProto.INT32,
    TensorProto.BOOL,
)


def info(
    name: str, dtype: int = FLOAT, shape: Sequence[int | str] | None = None
) -> object:
    return helper.make_tensor_value_info(name, dtype, shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Sequence[int | str]]],
    outputs: Sequence[str] = ("y",),
    constants: Mapping[str, object] | None = None,
    opset: int = 21,
) -> onnx.ModelProto:
    """A model, whose outputs are declared by their names alone."""
    graph = helper.make_graph(
        nodes,
        "g",
        [info(name, *kind) for name, kind in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [
            numpy_helper.from_array(np.asarray(a), n)
            for n, a in (constants or {}).items()
        ],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10
    )


def calling(bodies: Sequence[Sequence[onnx.NodeProto]]) -> onnx.ModelProto:
    """A model that calls F0 of domain `f`; `bodies` are those of F0, F1, ... (x -> y)."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    functions = [
        helper.make_function("f", f"F{n}", ["x"], ["y"], body, opsets)
        for n, body in enumerate(bodies)
    ]
    graph = helper.make_graph(
        [node("F0", ["x"], ["y"], domain="f")],
        "g",
        [info("x", FLOAT, [2])],
        [info("y")],
    )
    return helper.make_model(graph, functions=functions, opset_imports=opsets)
