"""ONNX operators in torch, those that the benchmark networks use; any floating dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from onnx import helper
from torch import Tensor

Attributes = dict[str, Any]
# An operator: from its inputs (None if omitted) and attributes to its first output.
Operator = Callable[[list[Any], Attributes], Tensor]


def _padding(x: Tensor, a: Attributes, value: float) -> tuple[Tensor, tuple[int, int]]:
    """The padding of a convolution or pooling (NOTSET only): equal on both sides it is handed on,
    else the input is padded."""
    if a.get("auto_pad", b"NOTSET") not in (b"NOTSET", "NOTSET"):
        raise NotImplementedError(f"auto_pad {a['auto_pad']!r}")
    top, left, bottom, right = a.get("pads", [0, 0, 0, 0])
    if (top, left) == (bottom, right):
        return x, (top, left)
    return F.pad(x, (left, right, top, bottom), value=value), (0, 0)


def _conv(i: list[Any], a: Attributes) -> Tensor:
    bias = i[2] if len(i) > 2 else None
    strides, dilations = a.get("strides", [1, 1]), a.get("dilations", [1, 1])
    x, padding = _padding(i[0], a, 0.0)
    return F.conv2d(x, i[1], bias, strides, padding, dilations, a.get("group", 1))


def _conv_transpose(i: list[Any], a: Attributes) -> Tensor:
    if any(a.get("pads", [])) or any(a.get("output_padding", [])):
        raise NotImplementedError("ConvTranspose with padding")
    bias = i[2] if len(i) > 2 else None
    group, dilations = a.get("group", 1), a.get("dilations", [1, 1])
    return F.conv_transpose2d(
        i[0], i[1], bias, a.get("strides", [1, 1]), groups=group, dilation=dilations
    )


def _max_pool(i: list[Any], a: Attributes) -> Tensor:
    x, padding = _padding(i[0], a, -float("inf"))
    size, strides = a["kernel_shape"], a.get("strides", [1, 1])
    return F.max_pool2d(
        x, size, strides, padding, ceil_mode=bool(a.get("ceil_mode", 0))
    )


def _average_pool(i: list[Any], a: Attributes) -> Tensor:
    """Where the padding is uneven: sums over sums of ones, whether or not padding counts."""
    if a.get("ceil_mode", 0):
        raise NotImplementedError("AveragePool with ceil_mode")
    size, strides = a["kernel_shape"], a.get("strides", [1, 1])
    counts = bool(a.get("count_include_pad", 0))
    x, padding = _padding(i[0], a, 0.0)
    if x is i[0]:
        return F.avg_pool2d(x, size, strides, padding, count_include_pad=counts)
    ones, _ = _padding(torch.ones_like(i[0]), a, float(counts))
    return F.avg_pool2d(x, size, strides) / F.avg_pool2d(ones, size, strides)


def _batch_norm(i: list[Any], a: Attributes) -> Tensor:
    x, scale, shift, mean, var = i
    return F.batch_norm(x, mean, var, scale, shift, eps=a.get("epsilon", 1e-5))


def _layer_norm(i: list[Any], a: Attributes) -> Tensor:
    shape = i[0].shape[a.get("axis", -1) :]
    return F.layer_norm(
        i[0], shape, i[1], i[2] if len(i) > 2 else None, a.get("epsilon", 1e-5)
    )


def _gemm(i: list[Any], a: Attributes) -> Tensor:
    left = i[0].T if a.get("transA", 0) else i[0]
    right = i[1].T if a.get("transB", 0) else i[1]
    product = a.get("alpha", 1.0) * (left @ right)
    return product + a.get("beta", 1.0) * i[2] if len(i) > 2 else product


def _reshape(i: list[Any], a: Attributes) -> Tensor:
    shape = [int(d) for d in i[1]]
    if not a.get("allowzero", 0):
        shape = [i[0].shape[k] if d == 0 else d for k, d in enumerate(shape)]
    return i[0].reshape(shape)


def _unsqueeze(i: list[Any], _: Attributes) -> Tensor:
    rank = i[0].dim() + len(i[1])
    x: Tensor = i[0]
    for axis in sorted(int(d) % rank for d in i[1]):
        x = x.unsqueeze(axis)
    return x


def _gather(i: list[Any], a: Attributes) -> Tensor:
    axis = a.get("axis", 0) % i[0].dim()
    flat = i[0].index_select(axis, i[1].reshape(-1) % i[0].shape[axis])
    shape = (*i[0].shape[:axis], *i[1].shape, *i[0].shape[axis + 1 :])
    return flat.reshape(shape)


def _cast(i: list[Any], a: Attributes) -> Tensor:
    """To double for every floating type: this is the reference."""
    dtype = helper.tensor_dtype_to_np_dtype(a["to"])
    floating = dtype.kind in "fV"  # bfloat16 is of kind V
    return (
        i[0].double()
        if floating
        else i[0].to(torch.from_numpy(np.empty(0, dtype)).dtype)
    )


def _reduce_mean(i: list[Any], a: Attributes) -> Tensor:
    return i[0].mean([int(d) for d in i[1]], keepdim=bool(a.get("keepdims", 1)))


def _clip(i: list[Any], _: Attributes) -> Tensor:
    low, high = ([*i[1:], None, None])[:2]
    return i[0].clamp(low, high)


def _reduce_sum(i: list[Any], a: Attributes) -> Tensor:
    return i[0].sum([int(d) for d in i[1]], keepdim=bool(a.get("keepdims", 1)))


def _slice(i: list[Any], _: Attributes) -> Tensor:
    """Positive steps only."""
    starts, ends = i[1].tolist(), i[2].tolist()
    axes = i[3].tolist() if len(i) > 3 else range(len(starts))
    steps = i[4].tolist() if len(i) > 4 else [1] * len(starts)
    index = [slice(None)] * i[0].dim()
    for axis, start, end, step in zip(axes, starts, ends, steps):
        index[axis] = slice(start, end, step)
    return i[0][tuple(index)]


def _lstm(i: list[Any], a: Attributes) -> Tensor:
    """One direction, default activations, no peepholes: the states of all steps."""
    x, weights, recurrent, bias, _, hidden, cell = i[:7]
    if (
        weights.shape[0] != 1
        or len(i) > 7
        or a.get("layout", 0)
        or a.get("input_forget", 0)
    ):
        raise NotImplementedError("LSTM other than the plain forward one")
    h, c, states = hidden[0], cell[0], []
    for step in x:
        gates = step @ weights[0].T + h @ recurrent[0].T + bias[0].view(2, -1).sum(0)
        enter, out, forget, new = gates.chunk(4, dim=-1)
        c = forget.sigmoid() * c + enter.sigmoid() * new.tanh()
        h = out.sigmoid() * c.tanh()
        states.append(h[None])
    return torch.stack(states)


def _dequantize(i: list[Any], a: Attributes) -> Tensor:
    """Per tensor, or per index of an axis."""
    shape = [1] * i[0].dim()
    if i[1].numel() > 1:
        shape[a.get("axis", 1)] = -1
    scale, zero = (x.reshape(shape) for x in i[1:3])
    return (i[0].double() - zero.double()) * scale


def _quantize(i: list[Any], _: Attributes) -> Tensor:
    """Per tensor; the levels stay in double."""
    limits = torch.iinfo(i[2].dtype)
    return ((i[0] / i[1]).round() + i[2].double()).clamp(limits.min, limits.max)


OPERATORS: dict[str, Operator] = {
    "Add": lambda i, a: i[0] + i[1],
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Clip": _clip,
    "Concat": lambda i, a: torch.cat(i, a["axis"]),
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "DequantizeLinear": _dequantize,
    "Div": lambda i, a: i[0] / i[1],
    "Dropout": lambda i, a: i[0],
    "Erf": lambda i, a: torch.erf(i[0]),
    "Gather": _gather,
    "Gemm": _gemm,
    "GlobalAveragePool": lambda i, a: i[0].mean((2, 3), keepdim=True),
    "LSTM": _lstm,
    "LayerNormalization": _layer_norm,
    "MatMul": lambda i, a: i[0] @ i[1],
    "MaxPool": _max_pool,
    "Mul": lambda i, a: i[0] * i[1],
    "Pow": lambda i, a: i[0] ** i[1],
    "QuantizeLinear": _quantize,
    "ReduceMean": _reduce_mean,
    "ReduceSum": _reduce_sum,
    "Relu": lambda i, a: torch.relu(i[0]),
    "Reshape": _reshape,
    "Slice": _slice,
    "Softmax": lambda i, a: torch.softmax(i[0], a.get("axis", -1)),
    "Sub": lambda i, a: i[0] - i[1],
    "Sum": lambda i, a: sum(i[1:], i[0]),
    "Tanh": lambda i, a: torch.tanh(i[0]),
    "Transpose": lambda i, a: i[0].permute(a["perm"]),
    "Unsqueeze": _unsqueeze,
}
