"""Losses: one number from a model's result and what it should be, as operators."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.base.dtypes import int64
from tilewright.graph.nodes import Value
from tilewright.graph.ops.derivative import extents
from tilewright.graph.ops.fragment import Fragment

# (where to add operators, the result, the target) -> the loss
Loss = Callable[[Fragment, Value, Value], Value]


def cross_entropy(f: Fragment, y: Value, target: Value) -> Value:
    """The mean of -log softmax(y)[target]; y: [..., classes], target: int64 of its other axes."""
    classes = extents(y)[-1]
    marks = f.constant([0, 1], y.dtype)
    hot = f.op("OneHot", target, f.constant(classes, int64), marks)
    log = f.op("LogSoftmax", y, axis=-1)
    of_each = f.op("ReduceSum", f.op("Mul", log, hot), f.ints(-1), keepdims=0)
    return f.op("Neg", f.op("ReduceMean", of_each, keepdims=0))


def mean_squared_error(f: Fragment, y: Value, target: Value) -> Value:
    """The mean of (y - target)**2; target: of the shape of y."""
    off = f.op("Sub", y, target)
    return f.op("ReduceMean", f.op("Mul", off, off), keepdims=0)


def target_of(loss: Loss, y: Value) -> Value:
    """The input that a loss compares with the result `y`."""
    if loss is cross_entropy:
        return Value("target", int64, extents(y)[:-1])
    return Value("target", y.dtype, y.shape)


LOSSES: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "mean_squared_error": mean_squared_error,
}
