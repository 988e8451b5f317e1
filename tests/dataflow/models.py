"""Models for the tests, from ONNX's text form."""

import numpy as np
import onnx
import onnx.parser
from onnx import numpy_helper

from tilewright.frontends.onnx import load
from tilewright.graph.nodes import Graph

RNG = np.random.default_rng(0)


def model(body: str, **weights: tuple[int, ...]) -> Graph:
    """A model in ONNX's text form with random weights of these shapes."""
    found = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21]>\n{body}'
    )
    for name, shape in weights.items():
        array = RNG.standard_normal(shape).astype(np.float32)
        found.graph.initializer.append(numpy_helper.from_array(array, name))
    return load(found)


def lenet() -> Graph:
    """LeNet-5 with random weights: two convolutions, three products, 28x28 pixels."""
    body = """g (float[1,1,28,28] x) => (float[1,10] y) {
        a = Conv <pads = [2, 2, 2, 2]> (x, w1)
        b = Relu(a)
        c = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (b)
        d = Conv(c, w2)
        e = Relu(d)
        f = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (e)
        g1 = Flatten(f)
        h = Gemm(g1, w3, b3)
        i = Relu(h)
        j = Gemm(i, w4, b4)
        k = Relu(j)
        y = Gemm(k, w5, b5)
    }"""
    weights = {
        "w1": (6, 1, 5, 5),
        "w2": (16, 6, 5, 5),
        "w3": (400, 120),
        "w4": (120, 84),
    }
    return model(body, **weights, w5=(84, 10), b3=(120,), b4=(84,), b5=(10,))
