"""Networks of bytes: QDQ form, integer products, quantization as the model runs."""

from __future__ import annotations

import numpy as np

from tilewright.graph.nodes import Value
from tilewright.testing.networks.builder import Net, network


def _qdq(n: Net, x: Value, scale: float, zero: int = 128) -> Value:
    """To bytes and back."""
    ends = n.const(np.float32(scale)), n.const(np.uint8(zero))
    return n("DequantizeLinear", n("QuantizeLinear", x, *ends), *ends)


def _bytes(n: Net, *shape: int, gain: float) -> Value:
    """Weights of one scale per output channel, in bytes, as they are read."""
    spread = (gain / np.prod(shape[1:])) ** 0.5
    scale = n.rng.uniform(0.8, 1.2, shape[0]) * spread / 40
    data = np.clip(np.rint(n.rng.standard_normal(shape) * 40), -127, 127).astype(np.int8)
    zeros = n.const(np.zeros(shape[0], np.int8))
    return n("DequantizeLinear", n.const(data), n.const(scale.astype("f")), zeros, axis=0)


def _conv(
    n: Net, x: Value, out: int, size: int = 3, stride: int = 1, *, groups: int = 1,
    act: str = "Relu", gain: float = 2.0,
) -> Value:  # fmt: skip
    w = _bytes(n, out, x.extents[1] // groups, size, size, gain=gain)
    y = n("Conv", x, w, n.near(0, out), pads=[size // 2] * 4, strides=[stride] * 2, group=groups)
    return _qdq(n, n.act(y, act), 0.03, 0 if act.startswith("Relu") else 128)


@network
def qdq_resnet(n: Net) -> Value:
    """Residuals added in floats between bytes; an overlapping pooling of bytes."""
    x = _qdq(n, n.input(1, 3, 33, 33), 0.03)
    x = n.pool(_conv(n, x, 12, 7, 2), 3, 2, 1)
    for out, stride in ((12, 1), (20, 2)):
        y = _conv(n, _conv(n, x, out, 3, stride), out, act="", gain=0.5)
        side = x if stride == 1 else _conv(n, x, out, 1, stride, act="", gain=1.0)
        x = _qdq(n, n("Relu", n("Add", y, side)), 0.03, 0)
    x = _qdq(n, n("Flatten", n("GlobalAveragePool", x)), 0.02, 0)
    return n("Gemm", x, _bytes(n, 10, 20, gain=1.0), n.near(0, 10), transB=1)


@network
def qdq_mobilenet(n: Net) -> Value:
    """Depthwise convolutions of bytes, clipped rectifiers."""
    x = _conv(n, _qdq(n, n.input(1, 3, 25, 25), 0.03), 10, 3, 2, act="Relu6")
    for out, stride in ((14, 1), (14, 1), (22, 2)):
        y = _conv(n, x, 3 * x.extents[1], 1, act="Relu6")
        y = _conv(n, y, y.extents[1], 3, stride, groups=y.extents[1], act="Relu6")
        y = _conv(n, y, out, 1, act="", gain=1.0)
        same = stride == 1 and x.extents == y.extents
        x = _qdq(n, n("Add", x, y), 0.04) if same else y
    return n.head(x)


@network
def qdq_concat(n: Net) -> Value:
    """Branches of one scale concatenated, and averaged, in bytes."""
    x = _conv(n, _qdq(n, n.input(1, 3, 17, 17), 0.03), 12, 3, 2)
    y = _qdq(n, n.cat(_conv(n, x, 9, 1), _conv(n, _conv(n, x, 7, 1), 14)), 0.03, 0)
    pooled = _qdq(n, n.mean(y, 3, 1, 1), 0.03, 0)
    return n.head(_conv(n, n.cat(y, pooled), 16, 1))


@network
def qdq_transformer(n: Net) -> Value:
    """Linear layers of bytes around attention in floats."""
    x = n.input(1, 34, 64)

    def linear(x: Value, out: int, gain: float = 1.0) -> Value:
        y = _qdq(n, x, 0.03)
        w = n.order(_bytes(n, out, x.extents[-1], gain=gain), 1, 0)
        return n("Add", n("MatMul", y, w), n.near(0, out))

    y = n.layer_norm(x)
    q, k, v = (linear(y, 64) for _ in range(3))
    scores = n("Mul", n("MatMul", q, n.order(k, 0, 2, 1)), 64**-0.5)
    y = n("MatMul", n("Softmax", scores, axis=-1), v)
    x = n("Add", x, linear(y, 64))
    return n("Add", x, linear(n.act(linear(n.layer_norm(x), 96, 2.0), "Gelu"), 64))


@network
def dynamic_quantization(n: Net) -> Value:
    """Bytes whose scale is that of the data: DynamicQuantizeLinear and MatMulInteger."""
    x = n.input(5, 26)
    for out in (34, 9):
        scale = 1 / (40 * x.extents[1] ** 0.5)
        data = np.clip(np.rint(n.rng.standard_normal((x.extents[1], out)) * 40), -127, 127)
        q, s, zero = n.many("DynamicQuantizeLinear", 3, x)
        sums = n("MatMulInteger", q, n.const(data.astype(np.int8)), zero, n.const(np.int8(0)))
        y = n("Mul", n("Cast", sums, to=1), n("Mul", s, scale))
        x = n.act(n("Add", y, n.near(0, out)), "Relu" if out == 34 else "")
    return x


@network
def operator_oriented(n: Net) -> Value:
    """QLinearConv and QLinearMatMul, bytes from end to end."""

    def end(scale: float, zero: int) -> tuple[Value, Value]:
        return n.const(np.float32(scale)), n.const(np.uint8(zero))

    q = n("QuantizeLinear", n.input(1, 3, 15, 15), *end(0.03, 128))
    at, spread = end(0.03, 128), 1 / (27**0.5 * 40)
    w = n.const(np.clip(np.rint(n.rng.standard_normal((48, 3, 3, 3)) * 40), -127, 127).astype("i1"))
    weights = w, n.const(np.float32(spread)), n.const(np.int8(0))
    q = n("QLinearConv", q, *at, *weights, *end(0.03, 120), pads=[1] * 4, strides=[2, 2])
    q = n.shape(n.order(q, 0, 2, 3, 1), 64, 48)
    w = n.const(np.clip(np.rint(n.rng.standard_normal((48, 32)) * 40), -127, 127).astype("i1"))
    weights = w, n.const(np.float32(1 / (48**0.5 * 40))), n.const(np.int8(0))
    q = n("QLinearMatMul", q, *end(0.03, 120), *weights, *end(0.03, 128))
    return n("DequantizeLinear", q, *end(0.03, 128))
