"""Float64 references: a benchmark network evaluated operator by operator with torch in double."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import helper, numpy_helper
from torch import Tensor

from benchmarks import models

Attributes = dict[str, Any]
# An operator: its inputs (None where left out) and attributes to its first output.
Operator = Callable[[list[Any], Attributes], Tensor]


def _padding(x: Tensor, a: Attributes, value: float) -> Tensor:
    """The input with the padding of a convolution or pooling made explicit (NOTSET only)."""
    if a.get("auto_pad", b"NOTSET") not in (b"NOTSET", "NOTSET"):
        raise NotImplementedError(f"auto_pad {a['auto_pad']!r}")
    top, left, bottom, right = a.get("pads", [0, 0, 0, 0])
    return F.pad(x, (left, right, top, bottom), value=value)


def _conv(i: list[Any], a: Attributes) -> Tensor:
    bias = i[2] if len(i) > 2 else None
    strides, dilations = a.get("strides", [1, 1]), a.get("dilations", [1, 1])
    return F.conv2d(_padding(i[0], a, 0.0), i[1], bias, strides, 0, dilations, a.get("group", 1))


def _max_pool(i: list[Any], a: Attributes) -> Tensor:
    x = _padding(i[0], a, -float("inf"))
    size, strides = a["kernel_shape"], a.get("strides", [1, 1])
    return F.max_pool2d(x, size, strides, ceil_mode=bool(a.get("ceil_mode", 0)))


def _average_pool(i: list[Any], a: Attributes) -> Tensor:
    """Sums over sums of ones: right whether or not padding counts."""
    if a.get("ceil_mode", 0):
        raise NotImplementedError("AveragePool with ceil_mode")
    size, strides = a["kernel_shape"], a.get("strides", [1, 1])
    ones = torch.ones_like(i[0])
    counted = _padding(ones, a, float(a.get("count_include_pad", 0)))
    total = F.avg_pool2d(_padding(i[0], a, 0.0), size, strides)
    return total / F.avg_pool2d(counted, size, strides)


def _batch_norm(i: list[Any], a: Attributes) -> Tensor:
    x, scale, shift, mean, var = i
    return F.batch_norm(x, mean, var, scale, shift, eps=a.get("epsilon", 1e-5))


def _layer_norm(i: list[Any], a: Attributes) -> Tensor:
    shape = i[0].shape[a.get("axis", -1) :]
    return F.layer_norm(i[0], shape, i[1], i[2] if len(i) > 2 else None, a.get("epsilon", 1e-5))


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
    flat = i[0].index_select(axis, i[1].reshape(-1))
    shape = (*i[0].shape[:axis], *i[1].shape, *i[0].shape[axis + 1 :])
    return flat.reshape(shape)


def _cast(i: list[Any], a: Attributes) -> Tensor:
    """To double for every floating type: this is the reference."""
    dtype = helper.tensor_dtype_to_np_dtype(a["to"])
    floating = np.issubdtype(dtype, np.floating)
    return i[0].double() if floating else i[0].to(torch.from_numpy(np.empty(0, dtype)).dtype)


def _reduce_mean(i: list[Any], a: Attributes) -> Tensor:
    return i[0].mean([int(d) for d in i[1]], keepdim=bool(a.get("keepdims", 1)))


def _clip(i: list[Any], _: Attributes) -> Tensor:
    low, high = ([*i[1:], None, None])[:2]
    return i[0].clamp(low, high)


OPERATORS: dict[str, Operator] = {
    "Add": lambda i, a: i[0] + i[1],
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Clip": _clip,
    "Concat": lambda i, a: torch.cat(i, a["axis"]),
    "Conv": _conv,
    "Div": lambda i, a: i[0] / i[1],
    "Dropout": lambda i, a: i[0],
    "Erf": lambda i, a: torch.erf(i[0]),
    "Gather": _gather,
    "Gemm": _gemm,
    "GlobalAveragePool": lambda i, a: i[0].mean((2, 3), keepdim=True),
    "LayerNormalization": _layer_norm,
    "MatMul": lambda i, a: i[0] @ i[1],
    "MaxPool": _max_pool,
    "Mul": lambda i, a: i[0] * i[1],
    "ReduceMean": _reduce_mean,
    "Relu": lambda i, a: torch.relu(i[0]),
    "Reshape": _reshape,
    "Softmax": lambda i, a: torch.softmax(i[0], a.get("axis", -1)),
    "Sub": lambda i, a: i[0] - i[1],
    "Sum": lambda i, a: sum(i[1:], i[0]),
    "Tanh": lambda i, a: torch.tanh(i[0]),
    "Transpose": lambda i, a: i[0].permute(a["perm"]),
    "Unsqueeze": _unsqueeze,
}


def _double(value: np.ndarray) -> Tensor:
    tensor = torch.from_numpy(np.array(value))
    return tensor.double() if tensor.is_floating_point() else tensor


def evaluate(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every tensor that the graph computes, floating ones in float64.

    Raises NotImplementedError naming an operator that no benchmark network uses.
    """
    graph = model.graph
    known: dict[str, Tensor | None] = {"": None}
    known |= {i.name: _double(numpy_helper.to_array(i)) for i in graph.initializer}
    known |= {name: _double(value) for name, value in feeds.items()}
    made: dict[str, np.ndarray] = {}
    with torch.inference_mode():
        for node in graph.node:
            if node.op_type not in OPERATORS:
                raise NotImplementedError(f"{node.op_type} ({node.name or node.output[0]})")
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            result = OPERATORS[node.op_type]([known[name] for name in node.input], attributes)
            known[node.output[0]] = result
            made[node.output[0]] = result.numpy()
    return made


def inner_tensors(model: onnx.ModelProto, count: int) -> list[str]:
    """`count` names of computed tensors, spread evenly over the depth of the graph."""
    kinds = {"Add", "Sum", "Relu", "Clip", "Concat", "Gemm", "MatMul", "MaxPool", "Softmax",
             "LayerNormalization"}  # fmt: skip
    outputs = {output.name for output in model.graph.output}
    names = [n.output[0] for n in model.graph.node
             if n.op_type in kinds and n.output[0] not in outputs]  # fmt: skip
    places = np.linspace(0, len(names) - 1, min(count, len(names))).round().astype(int)
    return [names[place] for place in places]


def write(name: str, path: Path, inner: int = 8, seed: int = 0) -> Path:
    """Writes `<name>.ref.npz` beside a model unless it is there and newer; returns its path.

    It holds `out.<name>` for the graph's outputs and `mid.<name>` for `inner` tensors inside.
    """
    target = path.with_suffix(".ref.npz")
    if target.exists() and target.stat().st_mtime > path.stat().st_mtime:
        return target
    model = onnx.load(path)
    values = evaluate(model, models.inputs(name, seed))
    arrays = {f"out.{o.name}": values[o.name] for o in model.graph.output}
    arrays |= {f"mid.{t}": values[t] for t in inner_tensors(model, inner)}
    np.savez(target, **arrays)  # type: ignore[arg-type]
    return target


def outputs(name: str, path: Path) -> list[np.ndarray]:
    """The graph's outputs in float64, in order."""
    with np.load(write(name, path)) as archive:
        return [archive[key] for key in archive.files if key.startswith("out.")]
