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
    scores = f.term(y)
    classes = f.constant(np.arange(extents(y)[-1]), int64)
    chosen = f.term(f.unsqueeze(target, -1)).equals(classes)
    log = chosen.chosen(scores.op("LogSoftmax", axis=-1), 0)
    of_each = log.op("ReduceSum", f.ints(-1), keepdims=0)
    ignored = f.term(target).equals(IGNORED)
    counts = ignored.chosen(scores.of(0), 1)
    total, count = (v.op("ReduceMean", keepdims=0) for v in (of_each, counts))
    return (-(total / count)).value


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
    off = f.term(y) - target
    mean = (off * off).op("ReduceMean", keepdims=0)
    return mean.value


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
