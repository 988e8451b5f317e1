"""ONNX operators in JAX, those that the benchmark networks use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax, nn, scipy

Attributes = dict[str, Any]
# An operator: its inputs (integer constants are NumPy arrays) and attributes to its first output.
Operator = Callable[[list[Any], Attributes], Any]


def _pads(a: Attributes) -> list[tuple[int, int]]:
    top, left, bottom, right = a.get("pads", [0, 0, 0, 0])
    return [(top, bottom), (left, right)]


def _with_bias(product: Any, i: list[Any]) -> Any:
    return product + i[2][:, None, None] if len(i) > 2 else product


def _conv(i: list[Any], a: Attributes) -> Any:
    product = lax.conv_general_dilated(
        i[0], i[1], a.get("strides", [1, 1]), _pads(a), rhs_dilation=a.get("dilations", [1, 1]),
        feature_group_count=a.get("group", 1),
    )  # fmt: skip
    return _with_bias(product, i)


def _conv_transpose(i: list[Any], a: Attributes) -> Any:
    numbers = ("NCHW", "IOHW", "NCHW")
    flipped = i[1][:, :, ::-1, ::-1]
    strides = a.get("strides", [1, 1])
    product = lax.conv_transpose(
        i[0], flipped, strides, "VALID", dimension_numbers=numbers
    )
    return _with_bias(product, i)


def _pool(x: Any, a: Attributes, start: float, combine: Any) -> Any:
    size, strides = (1, 1, *a["kernel_shape"]), (1, 1, *a.get("strides", [1, 1]))
    return lax.reduce_window(
        x, start, combine, size, strides, [(0, 0), (0, 0), *_pads(a)]
    )


def _average_pool(i: list[Any], a: Attributes) -> Any:
    total = _pool(i[0], a, 0.0, lax.add)
    if a.get("count_include_pad", 0):
        return total / np.prod(a["kernel_shape"])
    return total / _pool(jnp.ones_like(i[0]), a, 0.0, lax.add)


def _batch_norm(i: list[Any], a: Attributes) -> Any:
    x, scale, shift, mean, var = i
    factor = scale * lax.rsqrt(var + a.get("epsilon", 1e-5))
    return x * factor[:, None, None] + (shift - mean * factor)[:, None, None]


def _layer_norm(i: list[Any], a: Attributes) -> Any:
    mean = i[0].mean(-1, keepdims=True)
    var = i[0].var(-1, keepdims=True)
    return (i[0] - mean) * lax.rsqrt(var + a.get("epsilon", 1e-5)) * i[1] + i[2]


def _gemm(i: list[Any], a: Attributes) -> Any:
    left = i[0].T if a.get("transA", 0) else i[0]
    right = i[1].T if a.get("transB", 0) else i[1]
    product = a.get("alpha", 1.0) * (left @ right)
    return product + a.get("beta", 1.0) * i[2] if len(i) > 2 else product


def _reshape(i: list[Any], _: Attributes) -> Any:
    return i[0].reshape(
        [i[0].shape[k] if d == 0 else int(d) for k, d in enumerate(i[1])]
    )


def _slice(i: list[Any], _: Attributes) -> Any:
    index = [slice(None)] * i[0].ndim
    steps = i[4] if len(i) > 4 else np.ones_like(i[1])
    for axis, start, end, step in zip(i[3], i[1], i[2], steps):
        index[int(axis)] = slice(int(start), int(end), int(step))
    return i[0][tuple(index)]


def _lstm(i: list[Any], _: Attributes) -> Any:
    x, weights, recurrent, bias, _lengths, hidden, cell = i[:7]
    gates_of_x = x @ weights[0].T + bias[0].reshape(2, -1).sum(0)

    def step(state: Any, gates: Any) -> Any:
        h, c = state
        enter, out, forget, new = jnp.split(gates + h @ recurrent[0].T, 4, axis=-1)
        c = nn.sigmoid(forget) * c + nn.sigmoid(enter) * jnp.tanh(new)
        h = nn.sigmoid(out) * jnp.tanh(c)
        return (h, c), h

    return lax.scan(step, (hidden[0], cell[0]), gates_of_x)[1][:, None]


def _axes(i: list[Any]) -> tuple[int, ...]:
    return tuple(int(axis) for axis in i[1])


OPERATORS: dict[str, Operator] = {
    "Add": lambda i, a: i[0] + i[1],
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Cast": lambda i, a: i[0].astype(jnp.float32),
    "Clip": lambda i, a: jnp.clip(i[0], *i[1:]),
    "Concat": lambda i, a: jnp.concatenate(i, a["axis"]),
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Div": lambda i, a: i[0] / i[1],
    "Dropout": lambda i, a: i[0],
    "Erf": lambda i, a: scipy.special.erf(i[0]),
    "Gather": lambda i, a: jnp.take(i[0], i[1], a.get("axis", 0), mode="wrap"),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda i, a: i[0].mean((2, 3), keepdims=True),
    "LSTM": _lstm,
    "LayerNormalization": _layer_norm,
    "MatMul": lambda i, a: i[0] @ i[1],
    "MaxPool": lambda i, a: _pool(i[0], a, -np.inf, lax.max),
    "Mul": lambda i, a: i[0] * i[1],
    "Pow": lambda i, a: i[0] ** i[1],
    "ReduceMean": lambda i, a: i[0].mean(_axes(i), keepdims=bool(a.get("keepdims", 1))),
    "ReduceSum": lambda i, a: i[0].sum(_axes(i), keepdims=bool(a.get("keepdims", 1))),
    "Relu": lambda i, a: nn.relu(i[0]),
    "Reshape": _reshape,
    "Slice": _slice,
    "Softmax": lambda i, a: nn.softmax(i[0], a.get("axis", -1)),
    "Sub": lambda i, a: i[0] - i[1],
    "Sum": lambda i, a: sum(i[1:], i[0]),
    "Tanh": lambda i, a: jnp.tanh(i[0]),
    "Transpose": lambda i, a: i[0].transpose(a["perm"]),
    "Unsqueeze": lambda i, a: jnp.expand_dims(i[0], _axes(i)),
}
