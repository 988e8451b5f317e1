"""Losses: operators that reduce a model's result and its target to one number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.base.dtypes import int64
from tilewright.base.errors import InputError
from tilewright.graph.nodes import Value
from tilewright.graph.ops.derivative import extents
from tilewright.graph.ops.fragment import Fragment

# (where to add operators, the result, the target) -> the loss
Loss = Callable[[Fragment, Value, Value], Value]


IGNORED = -100  # a target that is left out of the mean, as in PyTorch


def cross_entropy(f: Fragment, y: Value, target: Value) -> Value:
    """The mean of -log softmax(y)[target] over targets that are not IGNORED; NaN if there are none.

    y: [..., classes]; target: int64 [...], each element a class (`check_classes`).
    """
    classes = f.constant(np.arange(extents(y)[-1]), int64)
    chosen = f.op("Equal", f.op("Unsqueeze", target, f.ints(-1)), classes)
    log = f.op("Where", chosen, f.op("LogSoftmax", y, axis=-1), f.constant(0, y.dtype))
    of_each = f.op("ReduceSum", log, f.ints(-1), keepdims=0)
    ignored = f.op("Equal", target, f.constant(IGNORED, int64))
    counts = f.op("Where", ignored, f.constant(0, y.dtype), f.constant(1, y.dtype))
    means = (f.op("ReduceMean", v, keepdims=0) for v in (of_each, counts))
    return f.op("Neg", f.op("Div", *means))


def check_classes(target: np.ndarray[Any, Any], classes: int) -> None:
    """Raise InputError for a target that is neither a class nor IGNORED."""
    wrong = (target != IGNORED) & ((target < 0) | (target >= classes))
    if wrong.any():
        at = tuple(map(int, np.argwhere(wrong)[0]))
        raise InputError(
            f"target{list(at)} is {target[at]}, not one of the {classes} classes",
            hint=f"a class is 0 to {classes - 1}; {IGNORED} is left out of the loss",
        )


def mean_squared_error(f: Fragment, y: Value, target: Value) -> Value:
    """The mean of (y - target)**2; target has the shape of y."""
    off = f.op("Sub", y, target)
    return f.op("ReduceMean", f.op("Mul", off, off), keepdims=0)


def target_of(loss: Loss, y: Value) -> Value:
    """The input that a loss compares with the result `y`."""
    if loss is cross_entropy:
        return Value("target", int64, extents(y)[:-1])
    return Value("target", y.dtype, y.shape)


def classes_of(loss: Loss, y: Value) -> int | None:
    """The number of classes that a loss's targets choose from; None if targets are numbers."""
    return extents(y)[-1] if loss is cross_entropy else None


LOSSES: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "mean_squared_error": mean_squared_error,
}
