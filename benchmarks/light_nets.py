"""Networks whose graphs the onnx package ships without weights: take the graph, draw weights."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.backend.test
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

from benchmarks.weights import RESIDUAL, draw

OPSET = 17
IR_VERSION = 8

# (operator, input index) -> role of the tensor that arrives there.
ROLE_OF_PLACE = {
    ("Conv", 1): "matrix",
    ("Conv", 2): "bias",
    ("Gemm", 1): "matrix",
    ("Gemm", 2): "bias",
    ("BatchNormalization", 1): "scale",
    ("BatchNormalization", 2): "shift",
    ("BatchNormalization", 3): "mean",
    ("BatchNormalization", 4): "var",
    ("Mul", 1): "scale",
    ("Add", 1): "shift",
}

# Operators that preserve the sign of their input: a rectified input has a rectified output.
SIGN_KEEPING = {
    "MaxPool",
    "AveragePool",
    "GlobalAveragePool",
    "Dropout",
    "Reshape",
    "Transpose",
}


class _Graph:
    """Who makes and who reads each tensor of a graph."""

    def __init__(self, nodes: list[NodeProto]) -> None:
        self.maker = {out: node for node in nodes for out in node.output}
        self.readers: dict[str, list[tuple[NodeProto, int]]] = {}
        for node in nodes:
            for place, name in enumerate(node.input):
                self.readers.setdefault(name, []).append((node, place))

    def rectified(self, tensor: str) -> bool:
        """Whether the tensor comes from a rectifier, through operators that keep signs."""
        node = self.maker.get(tensor)
        if node is None:
            return False
        if node.op_type == "Relu":
            return True
        if node.op_type == "Concat":
            return all(self.rectified(name) for name in node.input)
        return node.op_type in SIGN_KEEPING and self.rectified(node.input[0])

    def place(self, tensor: str) -> tuple[NodeProto, int] | None:
        """The operator and the input index where a weight is used, through any reshapes."""
        readers = self.readers.get(tensor)
        if not readers:
            return None
        node, index = readers[0]
        shaped = node.op_type in ("Unsqueeze", "Reshape") and index == 0
        return self.place(node.output[0]) if shaped else (node, index)

    def role(self, tensor: str) -> tuple[str, float] | None:
        """Role and gain of a weight; None for a tensor that is not a weight (a shape)."""
        place = self.place(tensor)
        role = place and ROLE_OF_PLACE.get((place[0].op_type, place[1]))
        if place is None or role is None:
            return None
        node = place[0]
        if role == "matrix":
            return role, 2.0 if self.rectified(node.input[0]) else 1.0
        return role, self._branch_gain(node) if role in ("scale", "shift") else 1.0

    def _branch_gain(self, node: NodeProto) -> float:
        """The factor of a normalization at the end of a residual branch."""
        for reader, _ in self.readers.get(node.output[0], []):
            if reader.op_type == "Sum":
                makers = [self.maker.get(name) for name in reader.input]
                branches = sum(
                    m is not None and m.op_type == node.op_type for m in makers
                )
                return RESIDUAL if branches == 1 else 0.5**0.5
        return 1.0


def _modern(node: NodeProto, graph: GraphProto) -> NodeProto:
    """The node as opset 17 writes it (the graphs are opset 9)."""
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type == "Unsqueeze":
        axes = f"axes_{'_'.join(map(str, attributes['axes']))}"
        if axes not in {i.name for i in graph.initializer}:
            value = helper.make_tensor(
                axes, onnx.TensorProto.INT64, [2], attributes["axes"]
            )
            graph.initializer.append(value)
        return helper.make_node(
            "Unsqueeze", [node.input[0], axes], node.output, node.name
        )
    if node.op_type == "Dropout":
        return helper.make_node("Dropout", node.input[:1], node.output[:1], node.name)
    if node.op_type == "Softmax":
        return helper.make_node("Softmax", node.input, node.output, node.name, axis=1)
    return node


def build(network: str, source: str, logit_gain: float) -> ModelProto:
    """The light model `source` at opset 17 with weights of `network` stored as initializers.

    logit_gain multiplies the variance of the last weight matrix, so that logits have std near 1.
    """
    folder = Path(onnx.backend.test.__file__).parent / "data" / "light"
    old = onnx.load(folder / f"light_{source}.onnx").graph
    shapes = {i.name: numpy_helper.to_array(i) for i in old.initializer}
    nodes = [n for n in old.node if n.op_type != "ConstantOfShape"]
    sizes = {name: value.shape for name, value in shapes.items()}
    for node in old.node:
        if node.op_type == "ConstantOfShape":
            sizes[node.output[0]] = tuple(int(d) for d in shapes[node.input[0]])
    graph = _Graph(nodes)
    last = [n for n in nodes if n.op_type in ("Conv", "Gemm")][-1]

    new = GraphProto(name=network)
    for name, size in sizes.items():
        role = graph.role(name)
        if role is not None:
            node, index = graph.place(name) or (None, 0)
            gain = role[1] * (logit_gain if node is last and index == 1 else 1.0)
            value = draw(network, name, role[0], size, gain)
            new.initializer.append(numpy_helper.from_array(value, name))
        elif name in graph.readers:
            new.initializer.append(numpy_helper.from_array(shapes[name], name))
    new.input.extend(i for i in old.input if i.name not in sizes)
    new.output.extend(old.output)
    new.node.extend(_modern(node, new) for node in nodes)
    model = helper.make_model(new, opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = IR_VERSION
    return model
