"""The derivatives of Softmax and LogSoftmax from their results, reusing the exponentials."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.graph.nodes import Value
from tilewright.graph.ops.derivative import Backward, shape
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import Gradient, OpCall

Axes = Callable[[OpCall, int], Sequence[int]]


def softmax_gradient(axes: Axes) -> Gradient:
    """y * (g - sum(g * y)) over the axes `axes(call, rank)`."""

    def rule(
        f: Fragment,
        call: Backward,
        x: Sequence[Value],
        y: Value,
        g: Value,
    ) -> Sequence[Value]:
        over = shape(f, axes(call, call.rank(0)))
        part = f.op("Mul", g, y)
        total = f.op("ReduceSum", part, over, keepdims=1)
        return [f.op("Mul", y, f.op("Sub", g, total))]

    return rule


def log_softmax_gradient(axes: Axes) -> Gradient:
    """g - exp(y) * sum(g) over the axes `axes(call, rank)`."""

    def rule(
        f: Fragment,
        call: Backward,
        x: Sequence[Value],
        y: Value,
        g: Value,
    ) -> Sequence[Value]:
        over = shape(f, axes(call, call.rank(0)))
        total = f.op("ReduceSum", g, over, keepdims=1)
        return [f.op("Sub", g, f.op("Mul", f.op("Exp", y), total))]

    return rule
