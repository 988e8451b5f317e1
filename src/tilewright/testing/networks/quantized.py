"""Networks of bytes: QDQ form, integer products, quantization as the model runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.testing.networks.builder import Net, NetTensor, network


def _qdq(
    n: Net,
    x: NetTensor,
    scale: float,
    zero: int = 128,
) -> NetTensor:
    """To bytes and back."""
    step = n.const(np.float32(scale))
    middle = n.const(np.uint8(zero))
    y = x.QuantizeLinear(step, middle)
    return y.DequantizeLinear(step, middle)


def _normal(n: Net, *shape: int) -> np.ndarray[Any, Any]:
    """Signed bytes with a spread of 40."""
    drawn = n.rng.standard_normal(shape)
    data = np.rint(drawn * 40)
    data = np.clip(data, -127, 127)
    return data.astype(np.int8)


def _bytes(
    n: Net,
    *shape: int,
    gain: float,
) -> NetTensor:
    """Weights of one scale per output channel, in bytes, as they are read."""
    out, *rest = shape
    fan = np.prod(rest)
    spread = (gain / fan) ** 0.5
    scale = n.rng.uniform(0.8, 1.2, out)
    scale = scale * spread / 40
    data = _normal(n, *shape)
    zeros = n.const(np.zeros(out, np.int8))
    w = n.const(data)
    return w.DequantizeLinear(scale, zeros, axis=0)


def _conv(
    n: Net,
    x: NetTensor,
    out: int,
    size: int = 3,
    stride: int = 1,
    *,
    groups: int = 1,
    act: str = "Relu",
    gain: float = 2.0,
) -> NetTensor:
    per_group = x.shape[1] // groups
    w = _bytes(n, out, per_group, size, size, gain=gain)
    y = x.Conv(
        w,
        n.near(0, out),
        pads=[size // 2] * 4,
        strides=[stride] * 2,
        group=groups,
    )
    y = y.act(act)
    if act.startswith("Relu"):
        zero = 0
    else:
        zero = 128
    return _qdq(n, y, 0.03, zero)


@network
def qdq_resnet(n: Net) -> NetTensor:
    """Residuals added in floats between bytes; an overlapping pooling of bytes."""
    x = n.input(1, 3, 33, 33)
    x = _qdq(n, x, 0.03)
    x = _conv(n, x, 12, 7, 2)
    x = x.max_pool(3, 2, 1)
    for out, stride in ((12, 1), (20, 2)):
        y = _conv(n, x, out, 3, stride)
        y = _conv(n, y, out, act="", gain=0.5)
        if stride == 1:
            side = x
        else:
            side = _conv(n, x, out, 1, stride, act="", gain=1.0)
        x = (y + side).Relu()
        x = _qdq(n, x, 0.03, 0)
    x = x.GlobalAveragePool()
    x = x.Flatten()
    x = _qdq(n, x, 0.02, 0)
    w = _bytes(n, 10, 20, gain=1.0)
    bias = n.near(0, 10)
    return x.Gemm(w, bias, transB=1)


@network
def qdq_mobilenet(n: Net) -> NetTensor:
    """Depthwise convolutions of bytes, clipped rectifiers."""
    x = n.input(1, 3, 25, 25)
    x = _qdq(n, x, 0.03)
    x = _conv(n, x, 10, 3, 2, act="Relu6")
    for out, stride in (
        (14, 1),
        (14, 1),
        (22, 2),
    ):
        wide = 3 * x.shape[1]
        y = _conv(n, x, wide, 1, act="Relu6")
        y = _conv(n, y, wide, 3, stride, groups=wide, act="Relu6")
        y = _conv(n, y, out, 1, act="", gain=1.0)
        same = stride == 1 and x.shape == y.shape
        if same:
            x = _qdq(n, x + y, 0.04)
        else:
            x = y
    return x.head()


@network
def qdq_concat(n: Net) -> NetTensor:
    """Branches of one scale concatenated, and averaged, in bytes."""
    x = n.input(1, 3, 17, 17)
    x = _qdq(n, x, 0.03)
    x = _conv(n, x, 12, 3, 2)
    short = _conv(n, x, 9, 1)
    long = _conv(n, x, 7, 1)
    long = _conv(n, long, 14)
    y = n.cat(short, long)
    y = _qdq(n, y, 0.03, 0)
    pooled = y.average_pool(3, 1, 1)
    pooled = _qdq(n, pooled, 0.03, 0)
    x = n.cat(y, pooled)
    x = _conv(n, x, 16, 1)
    return x.head()


@network
def qdq_transformer(n: Net) -> NetTensor:
    """Linear layers of bytes around attention in floats."""
    x = n.input(1, 34, 64)

    def linear(
        x: NetTensor,
        out: int,
        gain: float = 1.0,
    ) -> NetTensor:
        y = _qdq(n, x, 0.03)
        w = _bytes(n, out, x.shape[-1], gain=gain)
        y = y @ w.mT
        return y + n.near(0, out)

    y = x.layer_norm()
    q, k, v = (linear(y, 64) for _ in range(3))
    scores = q @ k.mT * 64**-0.5
    weights = scores.Softmax(axis=-1)
    y = weights @ v
    x = x + linear(y, 64)
    y = x.layer_norm()
    y = linear(y, 96, 2.0)
    y = y.act("Gelu")
    return x + linear(y, 64)


@network
def dynamic_quantization(n: Net) -> NetTensor:
    """Bytes scaled by the data's range: DynamicQuantizeLinear and MatMulInteger."""
    x = n.input(5, 26)
    for out in (34, 9):
        depth = x.shape[1]
        scale = 1 / (40 * depth**0.5)
        data = _normal(n, depth, out)
        q, s, zero = n.many("DynamicQuantizeLinear", 3, x)
        sums = q.MatMulInteger(data, zero, np.int8(0))
        y = sums.Cast(to=1)
        y = y * (s * scale)
        x = y + n.near(0, out)
        if out == 34:
            x = x.Relu()
    return x


@network
def operator_oriented(n: Net) -> NetTensor:
    """QLinearConv and QLinearMatMul, bytes from end to end."""

    def end(scale: float, zero: int) -> tuple[NetTensor, NetTensor]:
        return n.const(np.float32(scale)), n.const(np.uint8(zero))

    def weights(*shape: int, fan: int) -> tuple[NetTensor, NetTensor, NetTensor]:
        spread = 1 / (fan**0.5 * 40)
        w = n.const(_normal(n, *shape))
        scale = n.const(np.float32(spread))
        return w, scale, n.const(np.int8(0))

    first = end(0.03, 128)
    middle = end(0.03, 120)
    last = end(0.03, 128)
    x = n.input(1, 3, 15, 15)
    q = x.QuantizeLinear(*first)
    filters = weights(48, 3, 3, 3, fan=27)
    pads = [1] * 4
    q = q.QLinearConv(*first, *filters, *middle, pads=pads, strides=[2, 2])
    q = q.transpose(0, 2, 3, 1)
    q = q.reshape(64, 48)
    matrix = weights(48, 32, fan=48)
    q = q.QLinearMatMul(*middle, *matrix, *last)
    return q.DequantizeLinear(*last)
