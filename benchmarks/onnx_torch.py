"""An ONNX file as a torch module, for networks without a definition in torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor, fx, nn

from benchmarks.torch_ops import OPERATORS


class OnnxModule(nn.Module):
    """Runs a graph node by node in float32; floating initializers are its buffers."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        super().__init__()
        self.graph = graph
        self.integers: dict[str, list[int]] = {}
        self.places: dict[str, str] = {}
        for place, initializer in enumerate(graph.initializer):
            value = numpy_helper.to_array(initializer)
            if value.dtype.kind == "f":
                self.places[initializer.name] = f"weight_{place}"
                self.register_buffer(f"weight_{place}", torch.from_numpy(value.copy()))
            else:
                self.integers[initializer.name] = value.reshape(-1).tolist()

    def forward(self, x: Tensor) -> Tensor:
        known: dict[str, Any] = {"": None, self.graph.input[0].name: x, **self.integers}
        known |= {name: getattr(self, place) for name, place in self.places.items()}
        for node in self.graph.node:
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            inputs = [known[name] for name in node.input]
            known[node.output[0]] = OPERATORS[node.op_type](inputs, attributes)
        result: Tensor = known[self.graph.output[0].name]
        return result


def convert(path: Path) -> nn.Module:
    """The graph of one float32 input and one output as straight-line torch code.

    Tracing leaves the calls of torch alone: no lookup of operators or attributes is timed.
    """
    return fx.symbolic_trace(OnnxModule(onnx.load(path).graph).eval())
