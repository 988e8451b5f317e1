"""Recognizing spelled-out attention: `softmax(pointwise(q @ k^T)) @ v`.

Operations before the first product (transposes, reshapes) stay outside; scales, masks, caps and
guards against NaN between the products go inside, in order. They form the body of the operation, so
its meaning is unchanged. Only scales of q and k move: they become one factor after the product,
where they are free (except in float16, where they keep the scores from overflowing).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.base.dtypes import float32
from tilewright.graph.nodes import Graph, Operation, Value, constant
from tilewright.graph.ops.attention import ATTENTION, DOMAIN
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import has_trait
from tilewright.graph.ops.traits import POINTWISE
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import one_of, onnx
from tilewright.graph.rules.rule import Rule

MAX_STEPS = 12  # most operators between the two products
# Limits for scales that may move across a sum, and for their inverses: the scores stay below the
# largest float32 on both sides for all scores that a softmax can distinguish.
MAX_SCALE = 2.0**16
SCALED = one_of(onnx.Mul, onnx.Div)


def _region(graph: Graph, softmax: Operation) -> list[Operation] | None:
    """The operations of the attention around a softmax, in the graph's order; None if none.

    scores -> pointwise* -> softmax over the last axis -> pointwise* -> product with v, where scores
    are a product. Inner values are read only inside and are not results of the model; all have the
    shape of the scores; neither the operands of the first product nor v are computed inside; the
    second product comes last (an unused step may follow it).
    """
    if not onnx.Softmax.covers(softmax) or not _along_rows(softmax):
        return None
    scores = softmax.inputs[0]
    found = softmax.outputs[0]
    assert scores is not None and found is not None
    before = next(_paths(graph, scores, scores), None)
    after = _forward(graph, found)
    if before is None or after is None:
        return None
    members = {softmax, *before, *after}
    last = after[-1]
    inner = {v for op in members if op is not last for v in op.writes}
    if any(v in graph.outputs or not members.issuperset(graph.users(v)) for v in inner):
        return None
    first = before[-1]
    alike = {*before, softmax, *after[:-1]}
    if any(v.shape != scores.shape for op in alike for v in op.writes):
        return None
    if not all(_is_matrix(v) for op in (first, last) for v in op.inputs):
        return None
    if inner.intersection((*first.inputs, *last.inputs[1:])):
        return None
    region = [op for op in graph.operations if op in members]
    if region[0] is first and region[-1] is last:
        return region
    return None


def _along_rows(softmax: Operation) -> bool:
    value = softmax.inputs[0]
    if value is None or not value.static or not value.shape:
        return False
    axis = softmax.attr("axis", -1 if softmax.version >= 13 else 1)
    return int(axis) in (-1, len(value.shape) - 1)


def _paths(
    graph: Graph,
    value: Value,
    scores: Value,
    steps: int = 0,
) -> Iterator[list[Operation]]:
    """Chains of pointwise operations from `value` back to a product, which comes last."""
    op = graph.producer(value)
    if op is None or steps > MAX_STEPS:
        return
    if onnx.MatMul.covers(op):
        yield [op]
    elif has_trait(op, POINTWISE):
        for v in op.inputs:
            if v is not None and v.shape == scores.shape:
                for rest in _paths(graph, v, scores, steps + 1):
                    yield [op, *rest]


def _forward(graph: Graph, found: Value) -> list[Operation] | None:
    """Pointwise operations that read the probabilities, and the product that they lead to."""
    steps: list[Operation] = []
    product: Operation | None = None
    reached: set[Value | None] = {found}
    queue = [found]
    while queue:
        for op in graph.users(queue.pop()):
            if op is product or op in steps:
                continue
            if onnx.MatMul.covers(op) and product is None:
                product = op
            elif has_trait(op, POINTWISE) and len(steps) < MAX_STEPS:
                steps.append(op)
                reached.update(op.writes)
                queue += op.writes
            else:
                return None
    if product is not None and product.inputs[0] in reached:
        return [*steps, product]
    return None


def _is_matrix(value: Value | None) -> bool:
    return value is not None and value.static and len(value.extents) >= 2


def _scaled_after(
    product: Operation,
    constants: dict[Value, Any],
    graph: Graph,
) -> list[Operation]:
    """The product of the unscaled operands, and their scales as one factor of the product.

    (a * s) @ (b * t) = (a @ b) * (s * t) for real numbers, but not for integers, whose quotients
    are rounded, nor in float16, where scales keep the scores from overflowing, nor for scales
    beyond MAX_SCALE, which do so in float32.
    """
    out = product.outputs[0]
    assert out is not None and out.dtype is not None
    operands, factor = [], 1.0
    for v in product.inputs:
        assert v is not None
        source, scale = _unscaled(graph, v)
        operands.append(source)
        factor *= scale
    moderate = 1 / MAX_SCALE <= abs(factor) <= MAX_SCALE
    if factor == 1.0 or not moderate or not out.dtype.is_float or out.dtype.bits < 32:
        return [product]
    array = np.array(factor, out.dtype.numpy)
    scale_value = constant(f"{out.name}/scale", array)
    constants[scale_value] = array
    plain = replace(out, name=f"{out.name}/unscaled")
    return [
        replace(
            product,
            inputs=tuple(operands),
            outputs=(plain,),
        ),
        Operation(
            "Mul",
            (plain, scale_value),
            (out,),
            version=14,
            name=f"{product.label}/scale",
        ),
    ]


def _unscaled(graph: Graph, value: Value) -> tuple[Value, float]:
    """The value that `value` is a constant multiple of, and the factor."""
    op = graph.producer(value)
    if op is None or not SCALED.covers(op):
        return value, 1.0
    divided = onnx.Div.covers(op)
    if divided:
        pairs = [op.inputs]
    else:
        pairs = [op.inputs, op.inputs[::-1]]
    for source, other in pairs:
        array = None if other is None else graph.constants.get(other)
        if (
            source is None
            or array is None
            or array.size != 1
            or source.shape != value.shape
        ):
            continue
        scalar = float(array.reshape(()))
        if scalar != 0.0:
            return source, 1.0 / scalar if divided else scalar
    return value, 1.0


def _as_one(region: Sequence[Operation]) -> Operation:
    """The operation whose body is the region, with its own parameters."""
    last = region[-1]
    made = {v for op in region for v in op.writes}
    operands = tuple(
        dict.fromkeys(v for op in region for v in op.reads if v not in made)
    )
    out = last.outputs[0]
    assert out is not None
    fresh = {v: replace(v, name=f"{v.name}/in") for v in operands}
    fresh |= {v: replace(v, name=f"{v.name}/of") for v in made}
    body = [
        replace(
            op,
            inputs=tuple(None if v is None else fresh[v] for v in op.inputs),
            outputs=tuple(None if v is None else fresh[v] for v in op.outputs),
        )
        for op in region
    ]
    attributes = {
        "body": Graph(
            "attention", tuple(fresh[v] for v in operands), (fresh[out],), tuple(body)
        )
    }
    return Operation(
        ATTENTION,
        operands,
        (out,),
        attributes=attributes,
        domain=DOMAIN,
        name=last.name,
    )


class AttentionRegion:
    """Two products with a softmax and any number of pointwise operators between them.

    Values between the products must not be read elsewhere or leave the graph.
    """

    names = onnx.Softmax.names

    def matches(self, graph: Graph, op: Operation) -> Iterator[Match]:
        """The region around a softmax over rows of scores."""
        region = _region(graph, op)
        if region is not None:
            yield Match(
                graph,
                region[-1],
                dict(enumerate(region)),
            )

    def __str__(self) -> str:
        return "MatMul(pointwise(Softmax(pointwise(MatMul(q, k)))), v)"


def _replacement(m: Match, f: Fragment) -> Value | None:
    """Attention of the region, with the scales of q and k after the first product"""
    region = [m.bound[n] for n in range(len(m.bound))]
    whole = _as_one([*_scaled_after(region[0], f.constants, m.graph), *region[1:]])
    f.operations.append(whole)
    return m.result


def _samples(rng: np.random.Generator) -> Graph:
    """Scores with a scale before or after the product, masked or capped, and their use."""
    f = Fragment("attention", {})
    q = Value("q", float32, (2, 3, 4))
    k = Value("k", float32, (2, 4, 5))
    v = Value("v", float32, (2, 5, 3))
    scale = f.constant(rng.uniform(0.1, 3), float32)
    if rng.random() < 0.5:
        scores = f.op("MatMul", f.op("Mul", q, scale), k)
    else:
        scores = f.op("Div", f.op("MatMul", q, k), scale)
    if rng.random() < 0.5:
        mask = f.constant(rng.standard_normal((3, 5)), float32)
        scores = f.op("Add", mask, scores)
    if rng.random() < 0.5:
        scores = f.op("Tanh", scores)
    weights = f.op("Softmax", scores, axis=-1)
    y = f.op("MatMul", weights, v)
    operations = tuple(f.operations)
    return Graph(
        "sample",
        (q, k, v),
        (y,),
        operations,
        f.constants,
    )


ATTENTION_RULE = Rule(
    "attention",
    AttentionRegion(),
    _replacement,
    exact=False,
    samples=_samples,
)
