"""ONNX operators as Lift terms: the part of a model that the machine supports.

A row of OPERATORS makes the result of an operation from a Layer, or rejects it with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.graph.nodes import Value
from tilewright.graph.ops.registry import OpCall
from tilewright.graph.ops.windows import Windows, windows
from tilewright.lift.patterns import At, Map, Reduce, Split
from tilewright.targets.npu import layers
from tilewright.targets.npu.layers import Join, Term, Transpose, Zip, add


class TermRefused(Exception):
    """An operation that the machine cannot do unchanged; the message says why."""


@dataclass(frozen=True, slots=True)
class OperationTerm:
    """An operation, and the terms of its inputs."""

    call: OpCall
    terms: Mapping[Value, Term]

    def x(self, i: int) -> Term:
        """Input `i`."""
        return self.terms[self.call.value(i)]

    def part(self, i: int) -> tuple[Term, tuple[int, ...]]:
        """Input `i` and its shape, for broadcasting: a known number is a literal."""
        known = self.call.constant(i)
        if known is not None and known.size == 1:
            return float(known.reshape(())), ()
        return self.x(i), self.call.shape(i)

    def require(self, condition: bool, why: str) -> None:
        """Raises Refused with these words if it does not hold."""
        if not condition:
            raise TermRefused(why)

    def plain(self, **attributes: Any) -> None:
        """Raises Refused for an attribute that is neither left out nor this."""
        for name, value in attributes.items():
            given = self.call.attr(name, value)
            same = (
                list(given) == list(value)
                if isinstance(value, list)
                else given == value
            )
            self.require(same, f"{name} is {given}")

    def windows(self, kernel: Sequence[int]) -> Windows:
        """Those of a convolution or pooling. Raises Refused if they are not of images."""
        shape = self.call.shape(0)
        self.require(
            len(shape) == 4, f"it has {len(shape) - 2} spatial dimensions, not 2"
        )
        return windows(self.call, shape[2:], kernel)


Rule = Callable[[OperationTerm], Term]


def _unary(f: Any) -> Rule:
    return lambda layer: layers.pointwise(layer.x(0), layer.call.shape(0), f)


def _binary(f: Any) -> Rule:
    def rule(layer: OperationTerm) -> Term:
        layer.require(len(layer.call.operation.inputs) == 2, "it has not two inputs")
        (a, of), (b, by) = layer.part(0), layer.part(1)
        return layers.broadcast(f, a, b, of, by)

    return rule


def _div(layer: OperationTerm) -> Term:
    (a, of), (b, by) = layer.part(0), layer.part(1)
    if by:
        inverse = layers.pointwise(b, by, _inverse)
    else:
        inverse = 1.0 / b
    return layers.broadcast(layers.mul, a, inverse, of, by)


def _inverse(e: Term) -> Term:
    return layers.div(1.0, e)


def _matmul(layer: OperationTerm) -> Term:
    of = layer.call.shape(0)
    by = layer.call.shape(1)
    layer.require(len(of) + len(by) > 2, "it is a product of two vectors")
    return layers.matmul(layer.x(0), layer.x(1), of, by)


def _gemm(layer: OperationTerm) -> Term:
    call = layer.call
    if call.attr("transA", 0):
        a = layer.x(0) | Transpose
    else:
        a = layer.x(0)
    if call.attr("transB", 0):
        weights = layer.x(1)
    else:
        weights = layer.x(1) | Transpose
    rows, columns = call.out(0).extents
    shape = (rows, columns)
    y = a | Map(lambda row: layers.product(weights, row))
    if (alpha := call.attr("alpha", 1.0)) != 1.0:
        y = layers.broadcast(layers.mul, y, alpha, shape, ())
    if call.has(2) and (beta := call.attr("beta", 1.0)):
        c, of = layer.part(2)
        if beta == 1.0:
            scaled = c
        else:
            scaled = layers.broadcast(layers.mul, c, beta, of, ())
        y = layers.broadcast(add, y, scaled, shape, of)
    return y


def _conv(layer: OperationTerm) -> Term:
    call = layer.call
    k = call.shape(1)
    out = call.out(0).extents
    found = layer.windows(k[2:])
    groups = call.attr("group", 1)
    depth = prod(k[1:])
    kernels = layers.reshape(layer.x(1), k, (k[0], depth))

    def product(weights: Term, part: Term) -> Term:
        places = layers.windows(part, k[1], found)
        return layers.matmul(
            weights, places | Transpose, (k[0] // groups, depth), (depth, 0)
        )

    def image(data: Term) -> Term:
        y = product(kernels, data)
        if groups > 1:
            parts = Zip(kernels | Split(k[0] // groups), data | Split(k[1]))
            y = parts | Map(product) | Join
        if call.has(2):
            y = Zip(y, layer.x(2)) | Map(lambda row, b: row | Map(lambda e: add(e, b)))
        return y | Map(Split(out[3]))

    return layer.x(0) | Map(image)


def _max_pool(layer: OperationTerm) -> Term:
    found = layer.windows(layer.call.attr("kernel_shape"))
    layer.require(len(layer.call.operation.writes) == 1, "it gives indices")
    return layer.x(0) | Map(
        lambda x: layers.pooled(x, found, layers.maximum, -layers.inf)
    )


def _average_pool(layer: OperationTerm) -> Term:
    found = layer.windows(layer.call.attr("kernel_shape"))
    padded = any((*found.begin, *found.end)) and not layer.call.attr(
        "count_include_pad", 0
    )
    layer.require(not padded, "its windows have different counts")
    layer.plain(ceil_mode=0)
    share = 1.0 / prod(found.kernel)
    sums = layer.x(0) | Map(lambda x: layers.pooled(x, found, add, 0.0))
    return layers.pointwise(
        sums, layer.call.out(0).extents, lambda e: layers.mul(e, share)
    )


def _global_average_pool(layer: OperationTerm) -> Term:
    shape = layer.call.shape(0)
    count = prod(shape[2:])
    rows = layers.reshape(layer.x(0), shape, (prod(shape[:2]), count))
    sums = (
        rows | Map(Reduce(add, 0.0)) | Join | Map(lambda e: layers.mul(e, 1.0 / count))
    )
    return layers.reshape(sums, (prod(shape[:2]),), layer.call.out(0).extents)


def _softmax(layer: OperationTerm) -> Term:
    rank = layer.call.rank(0)
    axis = layer.call.attr("axis", -1 if layer.call.version >= 13 else 1)
    last = axis in (-1, rank - 1)
    layer.require(last, f"it is along axis {axis}, not the last one")
    return layers.at_depth(layer.x(0), rank - 1, layers.softmax)


def _reshape(layer: OperationTerm) -> Term:
    return layers.reshape(layer.x(0), layer.call.shape(0), layer.call.out(0).extents)


def _transpose(layer: OperationTerm) -> Term:
    axes = layer.call.attr("perm", list(reversed(range(layer.call.rank(0)))))
    return layers.transpose(layer.x(0), axes)


def _gather(layer: OperationTerm) -> Term:
    index = layer.call.constant(1)
    if index is None or index.ndim:
        raise TermRefused("its indices are not one known number")
    axis = layer.call.axis(layer.call.attr("axis", 0), layer.call.rank(0))
    place = int(index) % layer.call.shape(0)[axis]
    return layers.at_depth(layer.x(0), axis, lambda part: part | At(place))


# Operators that may take a known number unchanged.
BROADCAST: Mapping[str, Rule] = {
    "Add": _binary(add),
    "Sub": _binary(layers.sub),
    "Mul": _binary(layers.mul),
    "Max": _binary(layers.maximum),
    "Div": _div,
}
OPERATORS: Mapping[str, Rule] = {
    **BROADCAST,
    "Relu": _unary(layers.relu),
    "Tanh": _unary(layers.tanh),
    "Sigmoid": _unary(layers.sigmoid),
    "Exp": _unary(layers.exp),
    "Reciprocal": _unary(_inverse),
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_average_pool,
    "Gather": _gather,
    "Softmax": _softmax,
    "Transpose": _transpose,
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _reshape),
}
