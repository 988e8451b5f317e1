"""Helpers for writing the rules of derivatives.

A rule (`OpDef.gradient`) returns, for one operator, the gradient of each of its inputs from the
gradient of its output, as operators added to a Fragment. `graph/gradient.py` walks a graph with
these rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import NoReturn

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import int64
from tilewright.base.errors import UnsupportedError
from tilewright.graph.nodes import Value
from tilewright.graph.ops.errors import place
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import Gradient, OpCall
from tilewright.graph.ops.terms import TensorTerm


@dataclass(frozen=True, eq=False)
class Backward(OpCall):
    """A use of an operator with the gradients of its outputs.

    flows: the gradients that are not zero, by output. asked: the outputs that the rule has looked
    at.
    """

    flows: Mapping[Value, Value] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)

    def flow(self, i: int) -> Value | None:
        """The gradient of output `i`; None if it is zero."""
        self.asked.add(i)
        return self.flows.get(self.out(i)) if self.wants(i) else None

    def depends(self, i: int) -> bool:
        """Whether input `i` is present and a float: other types have no derivative."""
        return self.has(i) and self.dtype(i).is_float

    def refuse(self, why: str, hint: str | None = None) -> NoReturn:
        """Raise UnsupportedError, as there is no derivative."""
        raise UnsupportedError(
            f"{self.operation.qualified} has no derivative: {why}",
            where=place(self.operation),
            hint=hint,
        )


# (the inputs, the output, the gradient of the output) -> the gradients of the inputs
Formula = Callable[[Sequence[TensorTerm], TensorTerm, TensorTerm], Sequence[TensorTerm]]


def by(formula: Formula) -> Gradient:
    """The rule of a formula: `by(lambda x, y, g: [g * x[1], g * x[0]])`."""

    def rule(
        f: Fragment,
        _: OpCall,
        x: Sequence[Value],
        y: Value,
        g: Value,
    ) -> Sequence[Value]:
        inputs = [f.term(v) for v in x]
        found = formula(inputs, f.term(y), f.term(g))
        return [term.value for term in found]

    return rule


def no_derivative(why: str) -> Gradient:
    """The rule of an operator that has no derivative."""
    return lambda _, call, x, y, g: call.refuse(why)


def extents(v: Value) -> tuple[int, ...]:
    """The shape of `v`. Raises UnsupportedError if it is unknown."""
    if not v.static:
        raise UnsupportedError(
            "a derivative needs known shapes",
            where=f"tensor {v.name!r}",
            hint="give dims={...}",
        )
    return v.extents


def shape(f: Fragment, sizes: Sequence[int]) -> Value:
    """Extents (or axes) as an operand."""
    return f.constant(list(sizes), int64)


def spread(f: Fragment, v: Value, like: Value) -> Value:
    """`v` broadcast to the shape of `like`."""
    return f.op("Expand", v, shape(f, extents(like)))


def filled(f: Fragment, like: Value, number: float) -> Value:
    """One number in the shape and type of `like`."""
    return spread(f, f.constant(number, like.dtype), like)


def reshaped(
    f: Fragment,
    v: Value,
    sizes: Sequence[int],
) -> Value:
    """`v` with another shape."""
    return f.op("Reshape", v, shape(f, sizes))


def as_input(
    f: Fragment,
    _: OpCall,
    x: Sequence[Value],
    y: Value,
    g: Value,
) -> Sequence[Value]:
    """The rule of operators that only reshape their first input."""
    return [reshaped(f, g, extents(x[0]))]


def scaled(f: Fragment, v: Value, factor: float) -> Value:
    """`v` times a number."""
    if factor == 1:
        return v
    return f.op("Mul", v, f.constant(factor, v.dtype))


def turned(f: Fragment, v: Value) -> Value:
    """`v` with its last two axes exchanged."""
    rank = len(extents(v))
    return f.transpose(v, *range(rank - 2), rank - 1, rank - 2)


def summed_to(f: Fragment, flow: Value, like: Value) -> Value:
    """`flow` summed over the axes along which `like` was broadcast."""
    have = extents(flow)
    want = extents(like)
    if have == want:
        return flow
    padded = (1,) * (len(have) - len(want)) + want
    axes = [i for i, (a, b) in enumerate(zip(have, padded, strict=True)) if a != b]
    if axes:
        flow = f.op("ReduceSum", flow, shape(f, axes), keepdims=1)
    return reshaped(f, flow, want)
