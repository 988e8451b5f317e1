"""Every graph rewrite keeps off where one of its conditions does not hold.

A row is a model that a rewrite takes (its first row of each group) or one that differs from that in
a single condition; both must mean the same before and after the passes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

from tilewright.base import events
from tilewright.frontends.onnx.load import load
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph import interp
from tilewright.graph.nodes import Value
from tilewright.graph.passes.simplify import merge_repeated
from tilewright.graph.pipeline import graph_pipeline

RNG = np.random.default_rng(5)
Row = tuple[
    int, str, dict[str, Any], bool
]  # opset, model, constants, whether a rewrite fires


def real(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.standard_normal(shape).astype(dtype)


def whole(dtype: Any, *shape: int) -> Any:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


# ------------------------------------------------- Conv, then BatchNormalization on constants

NORM = {
    "w": real(4, 3, 3, 3),
    "g": real(4),
    "h": real(4),
    "m": real(4),
    "v": abs(real(4)) + 1,
}
X = "float[2, 3, 5, 5] x) => (float[2, 4, 3, 3] y"
BN = "a = Conv(x, w) y = BatchNormalization{}(a, g, h, m, v)"
PLANES = {k: real(4, 1, 1) ** 2 + 1 for k in "ghmv"}
BATCH_NORM: dict[str, Row] = {
    "fires": (15, f"({X}) {{ {BN.format('')} }}", NORM, True),
    "training": (15, f"({X}) {{ {BN.format('<training_mode = 1>')} }}", NORM, False),
    "training before 7": (6, f"({X}) {{ {BN.format('')} }}", NORM, False),
    "inference before 7": (6, f"({X}) {{ {BN.format('<is_test = 1>')} }}", NORM, True),
    "training by its results": (
        9, f"({X}, float[4] n, float[4] o) {{ "
        "a = Conv(x, w) y, n, o = BatchNormalization(a, g, h, m, v) }", NORM, False,
    ),
    "statistics per element": (
        7, "(float[2, 3, 3, 3] x) => (float[2, 4, 1, 1] y) "
        f"{{ {BN.format('<spatial = 0>')} }}", {**NORM, **PLANES}, False,
    ),
    "the sum leaves the model": (
        15, f"({X}, float[2, 4, 3, 3] a) {{ {BN.format('')} }}", NORM, False,
    ),
    "the sum is read elsewhere": (
        15, f"({X}, float[2, 4, 3, 3] z) {{ {BN.format('')} z = Neg(a) }}", NORM, False,
    ),
    "a weight overflows": (
        15, "(float16[2, 3, 5, 5] x) => (float16[2, 4, 3, 3] y) "
        f"{{ q = Mul(x, low) {BN.format('').replace('x', 'q')} }}",
        {k: (v * (300 if k == "w" else 1)).astype(np.float16) for k, v in NORM.items()}
        | {"g": np.full(4, 6e4, np.float16), "low": np.float16(1e-5)}, False,
    ),
    "weights underflow": (
        15, f"({X}) {{ q = Mul(x, big) {BN.format('').replace('x', 'q')} }}",
        {**NORM, "w": NORM["w"] * np.float32(1e-20), "g": np.full(4, 1e-22, np.float32),
         "h": np.zeros(4, np.float32), "m": np.zeros(4, np.float32), "big": np.float32(1e35)},
        False,
    ),
    "statistics are given": (
        15, f"({X.replace(') =>', ', float[4] m) =>')}) {{ {BN.format('')} }}",
        {k: v for k, v in NORM.items() if k != "m"}, False,
    ),
}  # fmt: skip

BN4 = "(float[2, 4, 3, 3] x) => (float[2, 4, 3, 3] y) "
BN4 += "{ a = BatchNormalization{at}(x, g, h, m, v) {c} }"
ALONE = {k: NORM[k] for k in "ghmv"}
C = ALONE | {"c": real(4, 1, 1)}
FAR = np.full(4, 3e38, np.float32)


def _behind(c: str, at: str = "") -> str:
    return BN4.replace("{at}", at).replace("{c}", c)


MUL, ADD, RELU = (
    _behind("y = Mul(a, c)"),
    _behind("y = Add(c, a)"),
    _behind("y = Relu(a)"),
)
CHANNELS: dict[str, Row] = {
    "a product": (15, MUL, C, True),
    "a sum": (15, ADD, C, True),
    "a number": (15, MUL, ALONE | {"c": np.float32(3)}, True),
    "one per row": (15, MUL.replace("3, 3]", "4, 3]"), ALONE | {"c": real(4, 1)}, False),
    "one per image": (15, ADD, ALONE | {"c": real(2, 1, 1, 1)}, False),
    "one per image, in an axis that is not there": (
        15, ADD.replace("[2,", "[4,").replace("=> (float[", "=> (float[1, "),
        ALONE | {"c": real(1, 4, 1, 1, 1)}, False,
    ),
    "channels that spread": (
        15, MUL.replace("[2, 4", "[2, 1", 1), C | {k: a[:1] for k, a in ALONE.items()}, False,
    ),
    "training": (15, _behind("y = Mul(a, c)", "<training_mode = 1>"), C, False),
    "read elsewhere": (15, _behind("b = Mul(a, c) y = Add(a, b)"), C, False),
    "a scale overflows": (15, MUL, ALONE | {"g": FAR, "v": FAR, "c": FAR[0]}, False),
    "a bias overflows": (15, ADD, ALONE | {"h": FAR, "c": FAR[0]}, False),
    "unknown": (15, MUL.replace("] x)", "] x, float[4, 1, 1] c)"), ALONE, False),
}  # fmt: skip
BY_CONSTANTS: dict[str, Row] = {
    "fires": (15, RELU, ALONE, True),
    "of halves": (
        15, RELU.replace("float", "float16"), {k: a.astype("e") for k, a in ALONE.items()}, False,
    ),
    "a factor overflows": (15, RELU, ALONE | {"g": FAR, "v": 0 * FAR}, False),
    "an unknown scale": (
        15, RELU.replace("] x)", "] x, float[4] g)"), {k: ALONE[k] for k in "hmv"}, False,
    ),
}  # fmt: skip

# ------------------------------------------------------------------ layer normalization

LN = "m = ReduceMean(x, {axes}) d = Sub(x, m) q = {square} v = ReduceMean(q, {axes}) "
LN += "e = Add(v, eps) s = Sqrt(e) "
LAST = LN.format(axes="last", square="Pow(d, two)")
LNX = "float[2, 6, 6] x) => (float[2, 6, 6] y"
LNC = {
    "last": np.array([-1]), "first": np.array([1]), "two": np.float32(2), "eps": np.float32(0.01),
    "g": real(6), "column": real(6, 1),
}  # fmt: skip
ONE = np.ones((1, 1, 1, 1), np.float32)
LAYER_NORM: dict[str, Row] = {
    "fires": (18, f"({LNX}) {{ {LAST} y = Div(d, s) }}", LNC, True),
    "with a scale": (18, f"({LNX}) {{ {LAST} n = Div(d, s) y = Mul(n, g) }}", LNC, True),
    "another axis": (
        18, f"({LNX}) {{ {LN.format(axes='first', square='Pow(d, two)')} y = Div(d, s) }}", LNC,
        False,
    ),
    "another power": (18, f"({LNX}) {{ {LAST} y = Div(d, s) }}", LNC | {"two": np.float32(4)},
                      False),
    "epsilon of one more axis": (
        18, f"({LNX.replace('y', 'y').replace('(float[2', '(float[1, 2')}) "
        f"{{ {LAST} y = Div(d, s) }}", LNC | {"eps": 0.01 * ONE}, False,
    ),
    "power of one more axis": (
        18, f"({LNX.replace('(float[2', '(float[1, 2')}) {{ {LAST} y = Div(d, s) }}",
        LNC | {"two": 2 * ONE}, False,
    ),
    "epsilon per row": (
        18, f"({LNX}) {{ {LAST} y = Div(d, s) }}",
        LNC | {"eps": abs(real(6, 1)) + np.float32(0.01)}, False,
    ),
    "with a scale per row": (
        18, f"({LNX}) {{ {LAST} n = Div(d, s) y = Mul(n, column) }}", LNC, True,
    ),
    "the quotient leaves": (
        18, f"({LNX}, float[2, 6, 6] n) {{ {LAST} n = Div(d, s) y = Mul(n, g) }}", LNC, True,
    ),
    "a product of two": (
        18, f"({LNX}) {{ {LN.format(axes='last', square='Mul(d, x)')} r = Abs(e) t = Sqrt(r) "
        "y = Div(d, t) }", LNC, False,
    ),
    "deviation from something else": (
        18, f"({LNX}) {{ m = ReduceMean(x, last) d = Sub(x, m) c = Sub(x, g) q = Mul(c, c) "
        "v = ReduceMean(q, last) e = Add(v, eps) s = Sqrt(e) y = Div(d, s) }", LNC, False,
    ),
    "not divided by": (18, f"({LNX}) {{ {LAST} y = Div(s, d) }}", LNC, False),
}  # fmt: skip

# ----------------------------------------------------------------------------- RMS norm

RMS = "q = {square} m = ReduceMean(q, {axes}) e = Add(m, eps) "
SQUARED = RMS.format(square="Pow(x, two)", axes="last")
ROOT = SQUARED + "s = Sqrt(e) "
RMC = LNC | {"one": np.float32(1), "minus": np.float32(-0.5), "more": real(2, 6, 6)}
RMS_NORM: dict[str, Row] = {
    "divided": (18, f"({LNX}) {{ {ROOT} y = Div(x, s) }}", RMC, True),
    "with a scale": (18, f"({LNX}) {{ {ROOT} n = Div(x, s) y = Mul(g, n) }}", RMC, True),
    "by the reciprocal": (
        18, f"({LNX}) {{ {ROOT} r = Reciprocal(s) n = Mul(x, r) y = Mul(n, g) }}", RMC, True,
    ),
    "by one over it": (
        18, f"({LNX}) {{ {ROOT} r = Div(one, s) n = Mul(r, x) y = Mul(n, g) }}", RMC, True,
    ),
    "by a power": (
        18, f"({LNX}) {{ {SQUARED} r = Pow(e, minus) y = Mul(x, r) }}", RMC, True,
    ),
    "by another power": (
        18, f"({LNX}) {{ {SQUARED} r = Pow(e, minus) y = Mul(x, r) }}",
        RMC | {"minus": np.float32(-1.5)}, False,
    ),
    "another number over it": (
        18, f"({LNX}) {{ {ROOT} r = Div(two, s) y = Mul(r, x) }}", RMC, False,
    ),
    "another axis": (
        18, f"({LNX}) {{ {RMS.format(square='Mul(x, x)', axes='first')} s = Sqrt(e) "
        "y = Div(x, s) }", RMC, False,
    ),
    "a product of two": (
        18, f"({LNX}) {{ {RMS.format(square='Mul(x, more)', axes='last')} r = Abs(e) "
        "s = Sqrt(r) y = Div(x, s) }", RMC, False,
    ),
    "squares of something else": (
        18, f"({LNX}) {{ {RMS.format(square='Mul(more, more)', axes='last')} "
        "s = Sqrt(e) y = Div(x, s) }", RMC, False,
    ),
    "epsilon per row": (
        18, f"({LNX}) {{ {ROOT} y = Div(x, s) }}",
        RMC | {"eps": abs(real(6, 1)) + np.float32(0.01)}, False,
    ),
    "with a scale per row": (
        18, f"({LNX}) {{ {ROOT} n = Div(x, s) y = Mul(n, column) }}", RMC, True,
    ),
    "the quotient leaves": (
        18, f"({LNX}, float[2, 6, 6] n) {{ {ROOT} n = Div(x, s) y = Mul(n, g) }}", RMC, True,
    ),
    "not divided by": (18, f"({LNX}) {{ {ROOT} y = Div(s, x) }}", RMC, False),
}  # fmt: skip

# ----------------------------------------------------------------------------- attention

QKV = "float[2, 6, 4] q, float[2, 4, 6] k, float[2, 6, 4] v"
ATT = f"({QKV}) => (float[2, 6, 4] y) "
ATC = {
    "two": np.float32(2), "mask": real(6, 6), "tiny": np.float32(1e-20), "large": np.float32(1e20),
    "tall": real(2, 1, 6, 6), "three": np.int32(3),
}  # fmt: skip
PV = "p = Softmax<axis = -1>(s) y = MatMul(p, v)"
ATTENTION: dict[str, Row] = {
    "fires": (18, ATT + f"{{ s = MatMul(q, k) {PV} }}", ATC, True),
    "a scale before": (18, ATT + f"{{ a = Div(q, two) s = MatMul(a, k) {PV} }}", ATC, True),
    "another axis": (
        18, ATT + "{ s = MatMul(q, k) p = Softmax<axis = 1>(s) y = MatMul(p, v) }", ATC, False,
    ),
    "another axis by default": (
        12, ATT + "{ s = MatMul(q, k) p = Softmax(s) y = MatMul(p, v) }", ATC, False,
    ),
    "an unused step behind": (18, ATT + f"{{ s = MatMul(q, k) {PV} z = Mul(p, two) }}", ATC, False),
    "the scores leave": (
        18, f"({QKV}) => (float[2, 6, 4] y, float[2, 6, 6] s) {{ s = MatMul(q, k) {PV} }}", ATC,
        False,
    ),
    "the probabilities are read elsewhere": (
        18, f"({QKV}) => (float[2, 6, 4] y, float[2, 6] z) "
        f"{{ s = MatMul(q, k) {PV} z = ReduceMax<keepdims = 0>(p, ax) }}",
        ATC | {"ax": np.array([-1])}, False,
    ),
    "the probabilities twice": (
        18, "(float[2, 6, 4] q, float[2, 4, 6] k) => (float[2, 6, 6] y) "
        "{ s = MatMul(q, k) p = Softmax<axis = -1>(s) y = MatMul(p, p) }", ATC, False,
    ),
    "a mask of one more axis": (
        18, f"({QKV}) => (float[2, 2, 6, 4] y) "
        "{ a = MatMul(q, k) s = Add(a, tall) p = Softmax<axis = -1>(s) y = MatMul(p, v) }", ATC,
        False,
    ),
    "the scores are read elsewhere": (
        18, f"({QKV}) => (float[2, 6, 4] y, float[2, 6] z) "
        f"{{ s = MatMul(q, k) {PV} z = ReduceMax<keepdims = 0>(s, ax) }}",
        ATC | {"ax": np.array([-1])}, False,
    ),
    "probabilities of one more axis": (
        18, f"({QKV}) => (float[2, 2, 6, 4] y) {{ s = MatMul(q, k) p = Softmax<axis = -1>(s) "
        "r = Add(p, tall) y = MatMul(r, v) }", ATC, False,
    ),
    "quotients of integers": (
        18, "(int32[2, 6, 4] q, int32[2, 4, 6] k, float[2, 6, 4] v) => (float[2, 6, 4] y) "
        f"{{ i = Div(q, three) a = MatMul(i, k) s = Cast<to = 1>(a) {PV} }}", ATC, True,
    ),
    "scales that keep the scores finite": (
        18, ATT + "{ a = Mul(q, large) b = Mul(k, large) c = Mul(a, tiny) d = Mul(b, tiny) "
        f"s = MatMul(c, d) {PV} }}", ATC, True,
    ),
}  # fmt: skip

# ------------------------------------------------------------------- products of bytes

PRODUCT = {
    "w": whole(np.int8, 12, 20), "s": np.float32(0.03), "z": np.uint8(130), "t": np.float32(0.02),
    "o": np.int8(3), "u": np.float32(0.5), "zero": np.uint8(0), "low": np.float32(0),
    "c": real(20),
}  # fmt: skip
DQ = "a = DequantizeLinear(x, s, z) b = DequantizeLinear{}(w, t, o)"
MM = "(uint8[6, 12] x) => (float[6, 20] y) "
MMQ = "(uint8[6, 12] x) => (uint8[6, 20] y) "
GEMM = f"{{ {DQ.format('')} y = Gemm@(a, b, c) }}"
CONV = {
    **PRODUCT, "w": whole(np.int8, 8, 4, 3, 3), "ci": RNG.integers(-99, 99, 8).astype(np.int32),
    "cs": np.float32(0.03) * np.float32(0.02), "cz": np.int32(20000),
}  # fmt: skip
CV = "(uint8[1, 4, 6, 6] x) => (uint8[1, 8, 4, 4] y) "
CVB = f"{{ {DQ.format('')} d = DequantizeLinear(ci, cs@) r = Conv(a, b, d) " \
    "y = QuantizeLinear(r, u, zero) }"  # fmt: skip
PRODUCTS: dict[str, Row] = {
    "fires": (21, MM + f"{{ {DQ.format('')} y = MatMul(a, b) }}", PRODUCT, True),
    "scales of columns": (
        21, MM + f"{{ {DQ.format('<axis = 1>')} y = MatMul(a, b) }}",
        PRODUCT | {"t": abs(real(20)) + 1, "o": whole(np.int8, 20)}, True,
    ),
    "scales of rows": (
        21, MM + f"{{ {DQ.format('<axis = 0>')} y = MatMul(a, b) }}",
        PRODUCT | {"t": abs(real(12)) + 1, "o": whole(np.int8, 12)}, False,
    ),
    "scales of terms on the left": (
        21, MM + "{ a = DequantizeLinear<axis = 1>(x, s, z) b = DequantizeLinear(w, t, o) "
        "y = MatMul(a, b) }",
        PRODUCT | {"s": abs(real(12)) + 1, "z": whole(np.uint8, 12)}, False,
    ),
    "blocks": (
        21, MM + f"{{ {DQ.format('<axis = 0, block_size = 6>')} y = MatMul(a, b) }}",
        PRODUCT | {"t": abs(real(2, 20)) + 1, "o": whole(np.int8, 2, 20)}, False,
    ),
    "a scale of two axes": (
        21, MM + f"{{ {DQ.format('')} y = MatMul(a, b) }}",
        PRODUCT | {"s": np.array([[0.03]], np.float32)}, False,
    ),
    "quantized per column": (
        21, MMQ + f"{{ {DQ.format('')} r = MatMul(a, b) y = QuantizeLinear<axis = 1>(r, u, e) }}",
        PRODUCT | {"u": abs(real(20)) + 1, "e": whole(np.uint8, 20)}, True,
    ),
    "quantized to int16": (
        21, MMQ.replace("uint8[6, 20]", "int16[6, 20]") + f"{{ {DQ.format('')} r = MatMul(a, b) "
        "y = QuantizeLinear(r, u, e) }", PRODUCT | {"e": np.int16(5)}, True,
    ),
    "a vector": (
        21, f"(uint8[12] x) => (float[20] y) {{ {DQ.format('')} y = MatMul(a, b) }}", PRODUCT,
        False,
    ),
    "float16": (
        23, "(uint8[6, 12] x) => (float16[6, 20] y) { a = DequantizeLinear<output_dtype = 10>"
        "(x, s, z) b = DequantizeLinear<output_dtype = 10>(w, t, o) y = MatMul(a, b) }", PRODUCT,
        False,
    ),
    "infinite scale": (
        21, MM + f"{{ {DQ.format('')} y = MatMul(a, b) }}", PRODUCT | {"s": np.float32(np.inf)},
        False,
    ),
    "scales whose product underflows": (
        21, MM + f"{{ {DQ.format('')} y = MatMul(a, b) }}",
        PRODUCT | {"s": np.float32(1e-20), "t": np.float32(1e-21)}, False,
    ),
    "scales whose sums overflow": (
        21, MM + f"{{ {DQ.format('')} y = MatMul(a, b) }}",
        PRODUCT | {"s": np.float32(1e20), "t": np.float32(1e17), "w": whole(np.int8, 12, 20) // 64},
        False,
    ),
    "sums beyond int32": (
        21, f"(uint8[1, 33026] x) => (float[1, 2] y) {{ {DQ.format('')} y = MatMul(a, b) }}",
        PRODUCT | {"w": np.full((33026, 2), -128, np.int8), "o": np.int8(127)}, False,
    ),
    "the product is read elsewhere": (
        21, MMQ.replace("y)", "y, float[6, 20] r)") + f"{{ {DQ.format('')} r = MatMul(a, b) "
        "y = QuantizeLinear(r, u, zero) }", PRODUCT, True,
    ),
    "Gemm": (21, MM + GEMM.replace("@", ""), PRODUCT, True),
    "alpha": (21, MM + GEMM.replace("@", "<alpha = 2.0>"), PRODUCT, False),
    "beta": (21, MM + GEMM.replace("@", "<beta = 2.0>"), PRODUCT, False),
    "transposed": (
        21, "(uint8[12, 6] x) => (float[6, 20] y) " + GEMM.replace("@", "<transA = 1>"),
        PRODUCT, False,
    ),
    "transposed weights, scales of terms": (
        21, MM + f"{{ {DQ.format('<axis = 1>')} y = Gemm<transB = 1>(a, b, c) }}",
        PRODUCT | {"w": whole(np.int8, 20, 12), "t": abs(real(12)) + 1, "o": whole(np.int8, 12)},
        False,
    ),
    "whole bias": (21, CV + CVB.replace("@", ""), CONV, True),
    "bias with a zero point": (21, CV + CVB.replace("@", ", cz"), CONV, True),
    "bias of another scale": (21, CV + CVB.replace("@", ""), CONV | {"cs": np.float32(0.5)}, True),
    "bias at the end of int32": (
        21, CV + CVB.replace("@", ""),
        CONV | {"ci": np.full(8, 2**31 - 1, np.int32), "u": np.float32(1e5)}, True,
    ),
}  # fmt: skip

# ----------------------------------------------------------- selections between quantizations

SELECT = (
    "(uint8[1, 4, 6, 6] x) => (uint8[1, 4, 5, 5] y) { a = DequantizeLinear(x, s, z) "
    "b = MaxPool<kernel_shape = [2, 2]>(a) y = QuantizeLinear(b, u, p) }"
)
SAME = {
    "s": np.float32(0.03), "z": np.uint8(130), "u": np.float32(0.03), "p": np.uint8(130),
    "low": np.float32(-60), "high": np.float32(67.5),
}  # fmt: skip
CLIP = "(float[200] x) => (uint8[200] y) {{ b = {} y = QuantizeLinear(b, u, p) }}"
NEGATIVE = {"s": np.float32(-0.03), "u": np.float32(-0.03)}
MOST = np.float32(np.finfo(np.float32).max / 255)  # 255 times this is finite
HALF = {"u": np.float32(0.5), "p": np.uint8(120)}
QUANTIZED: dict[str, Row] = {
    "fires": (21, SELECT, SAME, True),
    "another zero point": (21, SELECT, SAME | {"p": np.uint8(3)}, False),
    "no zero point": (21, SELECT.replace("u, p", "u"), SAME, False),
    "another scale": (21, SELECT, SAME | {"u": np.float32(0.04)}, False),
    "a negative scale": (21, SELECT, SAME | NEGATIVE, False),
    "a scale beyond float32": (
        21, SELECT, SAME | {"s": np.float32(3e38), "u": np.float32(3e38)}, False,
    ),
    "the largest scale": (21, SELECT, SAME | {"s": MOST, "u": MOST}, True),
    "a scale of zero": (21, SELECT, SAME | {"s": np.float32(0), "u": np.float32(0)}, False),
    "scales per channel": (
        21, SELECT, SAME | {"s": abs(real(4)) + 1, "z": whole(np.uint8, 4)}, False,
    ),
    "scales per channel, dequantized alone": (
        21, "(uint8[1, 4, 6, 6] x) => (uint8[1, 4, 6, 6] y) "
        "{ a = DequantizeLinear(x, s, z) y = QuantizeLinear(a, u, p) }",
        SAME | {"s": abs(real(4)) + 1, "z": whole(np.uint8, 4)}, False,
    ),
    "a scale that is given": (
        21, SELECT.replace("x)", "x, float s)", 1), {k: v for k, v in SAME.items() if k != "s"},
        False,
    ),
    "a scale that is given twice": (
        21, SELECT.replace("x)", "x, float s)", 1).replace("u, p", "s, p"),
        {k: v for k, v in SAME.items() if k != "s"}, False,
    ),
    "a zero point that is given twice": (
        21, SELECT.replace("x)", "x, uint8 z)", 1).replace("u, p", "u, z"),
        {k: v for k, v in SAME.items() if k != "z"}, False,
    ),
    "another type": (
        21, "(uint8[9] x) => (int8[9] y) "
        "{ a = DequantizeLinear(x, s) y = QuantizeLinear(a, s, i) }",
        SAME | {"i": np.int8(0)}, False,
    ),
    "indices too": (
        21, SELECT.replace("b = Max", "b, i = Max").replace("y)", "y, int64[1, 4, 5, 5] i)", 1),
        SAME, False,
    ),
    "clipped by the type": (21, CLIP.format("Clip(x, low, high)"), SAME | HALF, True),
    "clipped below": (
        21, CLIP.format("Clip(x, low, high)"), SAME | HALF | {"low": np.float32(-50)}, False,
    ),
    "clipped above": (
        21, CLIP.format("Clip(x, low, high)"), SAME | HALF | {"high": np.float32(60)}, False,
    ),
    "clipped at NaN": (
        21, CLIP.format("Clip(x, low, high)"), SAME | HALF | {"low": np.float32(np.nan)}, False,
    ),
    "ReLU above the least byte": (21, CLIP.format("Relu(x)"), SAME | HALF, False),
    "ReLU at the least byte": (
        21, CLIP.format("Relu(x)"), SAME | HALF | {"p": np.uint8(0)}, True,
    ),
}  # fmt: skip

# --------------------------------------------------------------------- clean-up, bit by bit

BRANCHES = "<then_branch = t () => (float[3] p) {{ p = Neg({0}) }}, " \
    "else_branch = e () => (float[3] q) {{ q = Abs({0}) }}>"  # fmt: skip
CLEAN_UP: dict[str, Row] = {
    "a branch reads what a no-op made": (
        18, "(float[3] x, bool c) => (float[3] y) "
        f"{{ a = Identity(x) y = If(c) {BRANCHES.format('a')} }}", {}, True,
    ),
    "a branch reads a repetition": (
        18, "(float[3] x, bool c) => (float[3] y, float[3] z) "
        f"{{ a = Exp(x) b = Exp(x) z = Neg(a) y = If(c) {BRANCHES.format('b')} }}", {}, True,
    ),
    "zeros of either sign": (
        18, "(int64[1] n) => (float y) { a = ConstantOfShape<value = float[1] {0.0}>(n) "
        "b = ConstantOfShape<value = float[1] {-0.0}>(n) c = Sub(a, b) d = Sub(b, a) "
        "e = Reciprocal(c) f = Reciprocal(d) y = Max(e, f) }", {}, False,
    ),
    "dropout that trains at ratio 0": (
        18, "(float[3] x) => (float[3] y, bool[3] k) { a, k = Dropout(x, r, t) y = Neg(a) }",
        {"r": np.float32(0), "t": np.array(True)}, False,
    ),
    "a reshape that moves": (
        18, "(float[2, 3] x) => (float[2, 3] y) { a = Reshape(x, n) y = Transpose(a) }",
        {"n": np.array([3, 2])}, False,
    ),
    "a transpose that moves": (
        18, "(float[3, 3] x) => (float[3, 3] y) { a = Transpose(x) y = Neg(a) }", {}, False,
    ),
    "a cast there and back": (
        18, "(float[9] x) => (float[9] y) { a = Cast<to = 6>(x) b = Cast<to = 1>(a) y = Neg(b) }",
        {}, False,
    ),
}  # fmt: skip

GROUPS = {
    "batch norm": BATCH_NORM, "channels": CHANNELS, "by constants": BY_CONSTANTS,
    "layer norm": LAYER_NORM, "rms norm": RMS_NORM, "attention": ATTENTION,
    "products": PRODUCTS, "quantized": QUANTIZED, "clean-up": CLEAN_UP,
}  # fmt: skip
ON_BYTES = ("product-", "selection-", "quantized-", "clipped-")
RULES = {  # how the names of the rules begin that are looked at
    "batch norm": "batchnorm-", "channels": ("norm-scaled", "norm-shifted"),
    "by constants": "norm-by", "layer norm": "layer-norm", "rms norm": "rms-norm",
    "attention": "attention",
    "products": ON_BYTES, "quantized": ON_BYTES, "clean-up": "",
}  # fmt: skip
ROWS = [(g, n) for g, rows in GROUPS.items() for n in rows]


@pytest.mark.parametrize(("group", "name"), ROWS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_rewrite_where_it_may_and_nowhere_else(group: str, name: str) -> None:
    opset, source, constants, fires = GROUPS[group][name]
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}]> f {source}'
    )
    arrays = (numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items())
    model.graph.initializer.extend(arrays)
    graph = load(model)
    feeds = {v.name: _fed(v) for v in graph.inputs}
    fallback = OnnxFallback()
    expected = interp.evaluate(graph, feeds, fallback=fallback)
    with events.record() as log:
        on_bytes = group in ("products", "quantized")
        passed = graph_pipeline("default", fallback, on_bytes).run(graph, check=True)
    fired = [
        e.fields["rule"] for e in log if e.kind == "rule" and e.fields["set"] == "graph"
    ]
    assert any(name.startswith(RULES[group]) for name in fired) == fires
    found = interp.evaluate(passed, feeds, fallback=fallback)
    for key, want in expected.items():
        assert found[key].dtype == want.dtype
        bar = {"rtol": 1e-3 if want.dtype == np.float16 else 1e-5}
        bar["atol"] = (
            bar["rtol"] * np.abs(np.nan_to_num(want.astype(float), posinf=0)).max()
        )
        if want.dtype.kind in "iu":  # a tie that rounds to the other side
            bar = {"atol": 1 if group == "products" else 0, "rtol": 0}
        np.testing.assert_allclose(found[key].astype(float), want.astype(float), **bar)


def _fed(v: Value) -> Any:
    random = np.random.default_rng(3)
    if v.dtype is None or v.dtype.is_float:
        scale = 100 if v.extents == (200,) else 1
        return (scale * random.standard_normal(v.extents)).astype(
            v.dtype.numpy if v.dtype else "f"
        )
    if v.dtype.name == "uint8":
        return random.integers(0, 256, v.extents).astype(np.uint8)
    low, high = (0, 2) if v.dtype.is_bool else (-9, 9)
    return random.integers(low, high, v.extents).astype(v.dtype.numpy)


def test_an_operation_of_which_one_result_leaves_the_model_is_kept() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> f (float[5] x) => '
        "(float[2] a, float[2] b, int64[2] i) <int64[1] k = {2}> "
        "{ p, q = TopK(x, k) y, i = TopK(x, k) a = Neg(p) b = Abs(y) }"
    )
    graph = load(model)
    merged = merge_repeated(graph)
    assert [op.op_type for op in merged.operations].count("TopK") == 2
    feeds = {"x": real(5)}
    before, after = (
        interp.evaluate(g, feeds, fallback=OnnxFallback()) for g in (graph, merged)
    )
    for name, want in before.items():
        np.testing.assert_array_equal(after[name], want)


@pytest.mark.parametrize(
    ("c", "d", "merges"),
    [
        (np.float32(3), np.float32(3), True),
        (np.full(1, 3, np.float32), np.full(1, 3, np.float32), True),
        (np.float32(3), np.float32([3]), False),
        (np.float32(0.0), np.float32(-0.0), False),
        (np.full(2000, 3, np.float32), np.full(2000, 3, np.float32), True),
    ],
)
def test_operations_on_equal_constants_are_repeated(
    c: Any, d: Any, merges: bool
) -> None:
    """Of the same type and bits, whatever their size."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> f (float[2000] x) => (float[2000] y) '
        "{ a = Div(x, c) b = Div(x, d) y = Sub(a, b) }"
    )
    pairs = zip("cd", (c, d), strict=True)
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(v), k) for k, v in pairs
    )
    graph = load(model)
    merged = merge_repeated(graph)
    assert len(merged.operations) == (2 if merges else 3)
    feeds = {"x": real(2000)}
    with np.errstate(all="ignore"):
        want, got = (interp.evaluate(g, feeds)["y"] for g in (graph, merged))
    np.testing.assert_array_equal(got, want)
