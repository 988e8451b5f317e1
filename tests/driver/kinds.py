"""Small models, at least one for every sketch: what validation and sanitized code are tried on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from onnx import numpy_helper, parser

from tilewright.targets import registry
from tilewright.targets.base import Target


@dataclass(frozen=True)
class Small:
    """A model's text, the shapes of its weights, and how it is compiled."""

    text: str
    weights: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    math: str = "default"
    caches: tuple[int, int, int] | None = None

    def model(self) -> bytes:
        """The ONNX file."""
        head = '<ir_version: 9, opset_import: ["" : 21]> g '
        proto = parser.parse_model(head + self.text)
        rng = np.random.default_rng(0)
        for name, shape in self.weights.items():
            array = rng.standard_normal(shape).astype(np.float32)
            proto.graph.initializer.append(numpy_helper.from_array(array, name))
        keep = [v for v in proto.graph.input if v.name not in self.weights]
        del proto.graph.input[:]
        proto.graph.input.extend(keep)
        data: bytes = proto.SerializeToString()
        return data

    def target(self) -> Target:
        """This machine with the caches that the model asks for."""
        made: Any = registry.target("cpu", "native", self.math == "exact", 2)
        if self.caches is None:
            return made
        l1, l2, l3 = self.caches
        return replace(made, machine=replace(made.machine, l1=l1, l2=l2, l3=l3))


AXIS = "<int64[1] axis = {%d}>"
WHOLE = ", ".join(str(7 * n % 23 - 11) for n in range(64 * 24))
SMALL: dict[str, Small] = {
    "map": Small("(float[3,37] x) => (float[3,37] y) { y = Sigmoid(x) }"),
    "transpose": Small(
        "(float[37,53] x) => (float[53,37] y) { y = Transpose<perm=[1,0]>(x) }"
    ),
    "tiled": Small(
        "(float[33,20] x, float[20,41] w) => (float[33,41] y) { m = MatMul(x, w) y = Relu(m) }"
    ),
    "packed": Small(
        "(float[7,50] x, float[50,35] w, float[35] b) => (float[7,35] y) { y = Gemm(x, w, b) }",
        {"w": (50, 35), "b": (35,)},
    ),
    "convolution": Small(
        "(float[1,5,11,11] x, float[7,5,3,3] w) => (float[1,7,6,6] y) "
        "{ c = Conv<pads=[1,1,1,1], strides=[2,2]>(x, w) y = LeakyRelu(c) }",
        {"w": (7, 5, 3, 3)},
    ),
    "grouped": Small(
        "(float[2,12,9,9] x, float[12,1,3,3] w) => (float[2,12,9,9] y) "
        "{ y = Conv<pads=[1,1,1,1], group=12>(x, w) }",
        {"w": (12, 1, 3, 3)},
    ),
    "winograd": Small(
        "(float[1,64,20,20] x, float[64,64,3,3] w) => (float[1,64,20,20] y) "
        "{ y = Conv<pads=[1,1,1,1]>(x, w) }",
        {"w": (64, 64, 3, 3)},
    ),
    "windows": Small(
        "(float[1,4,13,13] x) => (float[1,4,6,6] y) "
        "{ y = MaxPool<kernel_shape=[3,3], strides=[2,2]>(x) }"
    ),
    "rows": Small("(float[5,67] x) => (float[5,67] y) { y = Softmax<axis=-1>(x) }"),
    "columns": Small(
        f"(float[200,70] x) => (float[70] y) {AXIS % 0} {{ y = ReduceSum<keepdims=0>(x, axis) }}",
        caches=(4 << 10, 16 << 10, 1 << 20),
    ),
    "attention": Small(
        "(float[1,2,24,8] q, float[1,2,8,40] k, float[1,2,40,8] v) => (float[1,2,24,8] y) "
        "{ s = MatMul(q, k) p = Softmax<axis=-1>(s) y = MatMul(p, v) }"
    ),
    "long attention": Small(
        "(float[1,2,24,8] q, float[1,2,8,2048] k, float[1,2,2048,8] v) => (float[1,2,24,8] y) "
        "{ s = MatMul(q, k) p = Softmax<axis=-1>(s) y = MatMul(p, v) }",
        caches=(16 << 10, 64 << 10, 1 << 20),
    ),
    "few bits": Small(
        f"(float[3,64] x, float[2,24] s) => (float[3,24] y) <int8[64,24] w = {{{WHOLE}}}> "
        "{ d = DequantizeLinear<axis=0, block_size=32>(w, s) y = MatMul(x, d) }",
        {"s": (2, 24)},
    ),
    "scan": Small(
        "(float[4,50] x) => (float[4,50] y) <int64 axis = {1}> { y = CumSum(x, axis) }"
    ),
    "plain": Small(
        f"(float[5,67] x) => (float[5] y) {AXIS % 1} {{ y = ReduceProd<keepdims=0>(x, axis) }}",
        math="exact",
    ),
    "sums with their errors": Small(
        f"(float[5,67] x) => (float[5] y) {AXIS % 1} {{ y = ReduceSum<keepdims=0>(x, axis) }}",
        math="exact",
    ),
    "argmax": Small(
        "(float[5,67] x) => (int64[5] y) { y = ArgMax<axis=1, keepdims=0>(x) }"
    ),
    "argmax of columns": Small(
        "(float[5,67] x) => (int64[67] y) { y = ArgMax<axis=0, keepdims=0>(x) }"
    ),
    "bytes": Small(
        "(uint8[17,24] x, int8[24,33] w) => (int32[17,33] y) { y = MatMulInteger(x, w) }"
    ),
    "pieces": Small(
        "(float[2,3,5] x, float[2,4,5] z) => (float[2,7,5] y) "
        "{ a = Relu(x) b = Neg(z) y = Concat<axis=1>(a, b) }"
    ),
    "gather": Small(
        "(float[9,6] x, int64[5] at) => (float[5,6] y) { y = Gather<axis=0>(x, at) }"
    ),
    "halves": Small(
        "(float16[9,31] x) => (float16[9,31] y) { y = Softmax<axis=-1>(x) }"
    ),
    "kernel": Small(
        "(float[5,30] x) => (float[5,4] y, int64[5,4] i) <int64[1] k = {4}> { y, i = TopK(x, k) }"
    ),
}
