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
        result = f.term(y)
        flow = f.term(g)
        total = (flow * result).op("ReduceSum", over, keepdims=1)
        return [(result * (flow - total)).value]

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
        flow = f.term(g)
        total = flow.op("ReduceSum", over, keepdims=1)
        share = f.term(y).op("Exp") * total
        return [(flow - share).value]

    return rule
