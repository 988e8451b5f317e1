"""Normalizations."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.frontends.torch.aten.rules import AtenCall, rule
from tilewright.frontends.torch.aten.wide import in_float32
from tilewright.graph.nodes import Value
from tilewright.graph.ops.terms import TensorTerm


def _parameter(c: AtenCall, name: str, fill: float, extents: list[int]) -> Value:
    """A weight or bias, or a neutral constant if there is none."""
    if c.has(name):
        return c.tensor(name, c.dtype)
    return c.build.constant(np.full(extents, fill, c.dtype.numpy))


@rule("aten.layer_norm", "aten.native_layer_norm")
def _layer_norm(c: AtenCall) -> Value | list[Value]:
    extents = [int(n) for n in c["normalized_shape"]]
    scale = _parameter(c, "weight", 1, extents)
    if c.has("bias"):
        bias = c.tensor("bias")
    else:
        bias = None
    if ".native" in c.name:
        how: dict[str, Any] = {"axis": -len(extents), "epsilon": float(c["eps"])}
        x = c.tensor("input")
        # Returns the result, its mean and the reciprocal of its deviation.
        return c.build.ops("LayerNormalization", x, scale, bias, count=3, **how)
    axis = -len(extents)
    eps = float(c["eps"])
    return c.op(
        "LayerNormalization", c.tensor("input"), scale, bias, axis=axis, epsilon=eps
    )


@rule("aten.rms_norm")
def _rms_norm(c: AtenCall) -> Value:
    """The default epsilon is that of the type in which PyTorch computes."""
    import torch

    extents = [int(n) for n in c["normalized_shape"]]
    scale = _parameter(c, "weight", 1, extents)
    computed = torch.promote_types(c.of("input").dtype, torch.float32)
    if c.has("eps"):
        eps = c["eps"]
    else:
        eps = torch.finfo(computed).eps
    axis = -len(extents)
    return c.op(
        "RMSNormalization", c.tensor("input"), scale, axis=axis, epsilon=float(eps)
    )


@rule("aten.batch_norm", "aten._native_batch_norm_legit_no_training")
def _batch_norm(c: AtenCall) -> Value | tuple[Value | None, ...]:
    """By the running statistics, or by the batch's if there are no others, which it would move."""
    alone = "legit_no_training" in c.name
    by_batch = not alone and not c.has("running_mean")
    if not alone and c["training"] and not by_batch:
        raise c.refuse("it moves its mean and variance towards the batch's")
    extents = [int(c.of("input").shape[1])]
    scale = _parameter(c, "weight", 1, extents)
    bias = _parameter(c, "bias", 0, extents)
    mean = _parameter(c, "running_mean", 0, extents)
    var = _parameter(c, "running_var", 1, extents)
    found = c.op(
        "BatchNormalization",
        c.tensor("input"),
        scale,
        bias,
        mean,
        var,
        epsilon=float(c["eps"]),
        **({"training_mode": 1} if by_batch else {}),
    )
    return (found, None, None) if alone else found


@rule("aten.group_norm")
@in_float32
def _group_norm(c: AtenCall) -> Value:
    """Normalize each group of channels as a row, then scale each channel."""
    groups = int(c["num_groups"])
    channels = int(c.of("input").shape[1])
    return _by_rows(c, groups, channels)


@rule("aten.native_group_norm")
def _native_group_norm(c: AtenCall) -> list[Value | None]:
    """Its other results are for training: the mean and reciprocal deviation of each group."""
    groups = int(c["group"])
    found = _normalized_groups(c)
    if not (c.uses(1) or c.uses(2)):
        return [found, None, None]
    if c.extent(0, "input") == 0:
        none = c.build.constant(np.zeros((0, groups), c.dtype.numpy))
        return [found, none, none]
    rows = _rows(c, groups)
    axes = c.ints(2)
    mean = c.op("ReduceMean", rows, axes, keepdims=1)
    away = TensorTerm(c, rows) - TensorTerm(c, mean)
    square = (away * away).value
    var = c.op("ReduceMean", square, axes, keepdims=0)
    deviation = (TensorTerm(c, var) + float(c["eps"])).op("Sqrt")
    flat = c.op("Squeeze", mean, axes)
    return [found, flat, deviation.op("Reciprocal").value]


@in_float32
def _normalized_groups(c: AtenCall) -> Value:
    return _by_rows(c, int(c["group"]), int(c["C"]))


@rule("aten.instance_norm")
def _instance_norm(c: AtenCall) -> Value:
    if not c["use_input_stats"]:
        raise c.refuse("it normalizes by running statistics")
    channels = int(c.of("input").shape[1])
    return _by_rows(c, channels, channels)


def _rows(c: AtenCall, groups: int) -> Value:
    if 0 in c.of("input").shape:
        raise c.refuse("its input has no elements")
    # 0 keeps the batch extent.
    shape = c.ints(0, groups, -1)
    return c.op("Reshape", c.tensor("input"), shape)


def _by_rows(c: AtenCall, groups: int, channels: int) -> Value:
    x = c.tensor("input")
    if 0 in c.of("input").shape:
        return x
    rank = c.rank("input")
    rows = _rows(c, groups)
    ones = _parameter(c, "", 1, [groups])
    zeros = _parameter(c, "", 0, [groups])
    epsilon = float(c["eps"])
    rows = c.op("InstanceNormalization", rows, ones, zeros, epsilon=epsilon)
    shape = c.op("Shape", x)
    found = c.op("Reshape", rows, shape)
    wide = [channels, *[1] * (rank - 2)]
    if c.has("weight"):
        weight = c.reshape(c.tensor("weight"), wide)
        found = c.op("Mul", found, weight)
    if c.has("bias"):
        bias = c.reshape(c.tensor("bias"), wide)
        found = c.op("Add", found, bias)
    return found
