"""Networks of bytes: QDQ form, integer products, quantization as the model runs."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.testing.networks.builder import Net, Tensor, network


def _qdq(
    n: Net,
    x: Tensor,
    scale: float,
    zero: int = 128,
) -> Tensor:
    """To bytes and back."""
    ends = n.const(np.float32(scale)), n.const(np.uint8(zero))
    return x.QuantizeLinear(*ends).DequantizeLinear(*ends)


def _normal(n: Net, *shape: int) -> np.ndarray[Any, Any]:
    """Signed bytes with a spread of 40."""
    data = np.rint(n.rng.standard_normal(shape) * 40)
    return np.clip(data, -127, 127).astype(np.int8)


def _bytes(n: Net, *shape: int, gain: float) -> Tensor:
    """Weights of one scale per output channel, in bytes, as they are read."""
    spread = (gain / np.prod(shape[1:])) ** 0.5
    scale = n.rng.uniform(0.8, 1.2, shape[0]) * spread / 40
    data = _normal(n, *shape)
    zeros = n.const(np.zeros(shape[0], np.int8))
    return n.const(data).DequantizeLinear(scale, zeros, axis=0)


def _conv(
    n: Net,
    x: Tensor,
    out: int,
    size: int = 3,
    stride: int = 1,
    *,
    groups: int = 1,
    act: str = "Relu",
    gain: float = 2.0,
) -> Tensor:
    w = _bytes(n, out, x.shape[1] // groups, size, size, gain=gain)
    y = x.Conv(
        w, n.near(0, out), pads=[size // 2] * 4, strides=[stride] * 2, group=groups
    )
    return _qdq(n, y.act(act), 0.03, 0 if act.startswith("Relu") else 128)


@network
def qdq_resnet(n: Net) -> Tensor:
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
        x = _qdq(n, (y + side).Relu(), 0.03, 0)
    x = _qdq(n, x.GlobalAveragePool().Flatten(), 0.02, 0)
    return x.Gemm(_bytes(n, 10, 20, gain=1.0), n.near(0, 10), transB=1)


@network
def qdq_mobilenet(n: Net) -> Tensor:
    """Depthwise convolutions of bytes, clipped rectifiers."""
    x = n.input(1, 3, 25, 25)
    x = _qdq(n, x, 0.03)
    x = _conv(n, x, 10, 3, 2, act="Relu6")
    for out, stride in ((14, 1), (14, 1), (22, 2)):
        y = _conv(n, x, 3 * x.shape[1], 1, act="Relu6")
        y = _conv(n, y, y.shape[1], 3, stride, groups=y.shape[1], act="Relu6")
        y = _conv(n, y, out, 1, act="", gain=1.0)
        same = stride == 1 and x.shape == y.shape
        x = _qdq(n, x + y, 0.04) if same else y
    return x.head()


@network
def qdq_concat(n: Net) -> Tensor:
    """Branches of one scale concatenated, and averaged, in bytes."""
    x = n.input(1, 3, 17, 17)
    x = _qdq(n, x, 0.03)
    x = _conv(n, x, 12, 3, 2)
    y = n.cat(_conv(n, x, 9, 1), _conv(n, _conv(n, x, 7, 1), 14))
    y = _qdq(n, y, 0.03, 0)
    pooled = y.average_pool(3, 1, 1)
    pooled = _qdq(n, pooled, 0.03, 0)
    x = n.cat(y, pooled)
    x = _conv(n, x, 16, 1)
    return x.head()


@network
def qdq_transformer(n: Net) -> Tensor:
    """Linear layers of bytes around attention in floats."""
    x = n.input(1, 34, 64)

    def linear(x: Tensor, out: int, gain: float = 1.0) -> Tensor:
        y = _qdq(n, x, 0.03)
        w = _bytes(n, out, x.shape[-1], gain=gain)
        w = w.transpose(1, 0)
        return y @ w + n.near(0, out)

    y = x.layer_norm()
    q, k, v = (linear(y, 64) for _ in range(3))
    scores = q @ k.transpose(0, 2, 1) * 64**-0.5
    y = scores.Softmax(axis=-1) @ v
    x = x + linear(y, 64)
    return x + linear(linear(x.layer_norm(), 96, 2.0).act("Gelu"), 64)


@network
def dynamic_quantization(n: Net) -> Tensor:
    """Bytes whose scale is that of the data: DynamicQuantizeLinear and MatMulInteger."""
    x = n.input(5, 26)
    for out in (34, 9):
        scale = 1 / (40 * x.shape[1] ** 0.5)
        data = _normal(n, x.shape[1], out)
        q, s, zero = n.many("DynamicQuantizeLinear", 3, x)
        sums = q.MatMulInteger(data, zero, np.int8(0))
        y = sums.Cast(to=1) * (s * scale)
        x = (y + n.near(0, out)).act("Relu" if out == 34 else "")
    return x


@network
def operator_oriented(n: Net) -> Tensor:
    """QLinearConv and QLinearMatMul, bytes from end to end."""

    def end(scale: float, zero: int) -> tuple[Tensor, Tensor]:
        return n.const(np.float32(scale)), n.const(np.uint8(zero))

    q = n.input(1, 3, 15, 15).QuantizeLinear(*end(0.03, 128))
    at = end(0.03, 128)
    spread = 1 / (27**0.5 * 40)
    w = n.const(_normal(n, 48, 3, 3, 3))
    weights = w, n.const(np.float32(spread)), n.const(np.int8(0))
    q = q.QLinearConv(*at, *weights, *end(0.03, 120), pads=[1] * 4, strides=[2, 2])
    q = q.transpose(0, 2, 3, 1)
    q = q.reshape(64, 48)
    w = n.const(_normal(n, 48, 32))
    weights = w, n.const(np.float32(1 / (48**0.5 * 40))), n.const(np.int8(0))
    q = q.QLinearMatMul(*end(0.03, 120), *weights, *end(0.03, 128))
    return q.DequantizeLinear(*end(0.03, 128))
