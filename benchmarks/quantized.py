"""Int8 products, convolutions and networks in ONNX's QDQ form, with drawn weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.weights import draw

# Weights have 7 bits, as ONNX Runtime advises: without VNNI it adds pairs of products in 16 bits,
# and returns wrong results if they saturate.
LARGEST = 63
# Of activations (uint8) in and out: about four standard deviations of a normal variable.
SCALE, ZERO = 1 / 32, 128


@dataclass(frozen=True)
class Quantized:
    """An operator between quantized tensors: its ONNX operator, weights, input and attributes."""

    operator: str
    weight: tuple[int, ...]
    shape: tuple[int, ...]
    attributes: dict[str, Any]


QUANTIZED: dict[str, Quantized] = {
    "int8_matmul_1024": Quantized("MatMul", (1024, 1024), (1024, 1024), {}),
    "int8_matmul_2048": Quantized("MatMul", (2048, 2048), (2048, 2048), {}),
    "int8_conv3x3_128x28": Quantized(
        "Conv", (128, 128, 3, 3), (1, 128, 28, 28), {"pads": [1, 1, 1, 1]}
    ),
    "int8_conv1x1_256x56_64": Quantized("Conv", (64, 256, 1, 1), (1, 256, 56, 56), {}),
}

# Quantized networks, and their float originals.
NETWORKS = {"int8_resnet18": "resnet18", "int8_mobilenet_v2": "mobilenet_v2"}


def write_network(
    source: Path, samples: Iterable[dict[str, np.ndarray]], path: Path
) -> None:
    """Writes a float network quantized by ONNX Runtime: weights per channel, activations uint8.

    samples: inputs whose ranges are the activations' ranges.
    """
    from onnxruntime import quantization

    class Samples(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter(samples)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.left, None)

    plain = path.with_suffix(".plain.onnx")
    try:
        quantization.quant_pre_process(source, plain, skip_symbolic_shape=True)
        quantization.quantize_static(
            plain, path, Samples(), per_channel=True, reduce_range=True
        )
    finally:
        plain.unlink(missing_ok=True)


def build(name: str) -> onnx.ModelProto:
    """float32 in, quantized to uint8, int8 weights, uint8 result, float32 out."""
    what = QUANTIZED[name]
    weight = draw(name, "weight", "matrix", what.weight)
    if what.operator == "MatMul":
        weight = np.ascontiguousarray(weight.T)
    scale = np.float32(np.abs(weight).max() / LARGEST)
    constants = {
        "scale": np.float32(SCALE),
        "zero": np.uint8(ZERO),
        "weight": np.round(weight / scale).astype(np.int8),
        "weight_scale": scale,
        "weight_zero": np.int8(0),
    }
    node = helper.make_node
    quantization = ["scale", "zero"]
    nodes = [
        node("QuantizeLinear", ["x0", *quantization], ["xq"]),
        node("DequantizeLinear", ["xq", *quantization], ["x"]),
        node("DequantizeLinear", ["weight", "weight_scale", "weight_zero"], ["w"]),
        node(what.operator, ["x", "w"], ["y"], **what.attributes),
        node("QuantizeLinear", ["y", *quantization], ["yq"]),
        node("DequantizeLinear", ["yq", *quantization], ["output"]),
    ]
    channels = what.weight[1] if what.operator == "MatMul" else what.weight[0]
    out = (*what.shape[:-1], channels) if what.operator == "MatMul" else (
        what.shape[0], channels, *what.shape[2:])  # fmt: skip
    graph = helper.make_graph(
        nodes, name,
        [helper.make_tensor_value_info("x0", TensorProto.FLOAT, what.shape)],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, out)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )  # fmt: skip
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8
    )
