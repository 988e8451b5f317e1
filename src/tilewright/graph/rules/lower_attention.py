"""Attention whose products are of bfloat16, summed in float32, where the machine multiplies pairs.

    softmax(scale(q @ k)) @ v
      =  bfloat16(softmax(scale(bfloat16(q) @ bfloat16(k)))) @ bfloat16(v)

Scores, masks and the sums of the softmax stay in float32; each probability is rounded once. Used
only on request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tilewright.base.dtypes import bfloat16, float32
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.attention import ATTENTION, DOMAIN
from tilewright.graph.ops.dtype_numbers import number_of
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.matmul import MIXED
from tilewright.graph.rules.attention import ATTENTION_RULE
from tilewright.graph.rules.driver import rewrite
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import onnx
from tilewright.graph.rules.rule import Rule

# Fewer queries read each key once, from memory, where a cast would only add to what is moved; fewer
# keys or columns do not fill a vector of pairs.
QUERIES = 17
LANES = 16


class AttentionOperation:
    """Attention that is one operation."""

    names = frozenset([f"{DOMAIN}::{ATTENTION}"])

    def matches(
        self,
        graph: Graph,
        op: Operation,
    ) -> Iterator[Match]:
        """The operation itself."""
        yield Match(graph, op, {})

    def __str__(self) -> str:
        return f"{DOMAIN}.{ATTENTION}(q, k, v)"


def _body(m: Match) -> Graph:
    body = m.root.attributes["body"]
    assert isinstance(body, Graph)
    return body


def _products(body: Graph) -> tuple[Operation, Operation]:
    """The product of queries and keys, and that of probabilities and values."""
    return body.operations[0], body.operations[-1]


def _rounded(body: Graph) -> set[Value]:
    """Queries, keys and values: what the products read from outside."""
    first, last = _products(body)
    found = (*first.inputs, last.inputs[1])
    return {v for v in found if v is not None}


def _of_floats(m: Match) -> bool:
    """products of float32"""
    products = _products(_body(m))
    plain = all(map(onnx.MatMul.covers, products))
    operands = {v for op in products for v in op.reads}
    return plain and all(v.dtype is float32 for v in operands)


def _alone(m: Match) -> bool:
    """what they multiply comes from outside, and nothing else between them reads it"""
    body = _body(m)
    found = _rounded(body)
    between = body.operations[1:-1]
    outside = found.issubset(body.inputs)
    return outside and all(found.isdisjoint(op.reads) for op in between)


def _of_many(m: Match) -> bool:
    """17 queries, 16 keys and values of 16 columns, at least; queries of whole pairs"""
    first, last = _products(_body(m))
    *_, queries, depth = first.reads[0].extents
    *_, keys, columns = last.reads[1].extents
    if queries < QUERIES:
        return False
    if min(keys, columns) < LANES:
        return False
    pairs = depth % 2 == 0
    return pairs


def _lowered(body: Graph) -> Graph:
    """The body with operands and probabilities in bfloat16."""
    first, last = _products(body)
    lower = {v: replace(v, dtype=bfloat16) for v in _rounded(body)}
    shares = last.reads[0]
    small = replace(shares, name=f"{shares.name}/rounded", dtype=bfloat16)
    to = {"to": number_of(bfloat16.name)}
    cast = Operation("Cast", (shares,), (small,), to, version=21, name=small.name)
    lower[shares] = small
    between = body.operations[1:-1]
    operations = (
        _mixed(first, lower),
        *between,
        cast,
        _mixed(last, lower),
    )
    inputs = tuple(lower.get(v, v) for v in body.inputs)
    return replace(
        body,
        inputs=inputs,
        operations=operations,
    )


def _mixed(
    product: Operation,
    lower: dict[Value, Value],
) -> Operation:
    """A product with its operands in the lower type."""
    # Not `reads`, which has what is both factors once.
    inputs = tuple(lower[v] for v in product.inputs if v is not None)
    return replace(product, op_type=MIXED, domain=DOMAIN, version=1, inputs=inputs)


def _lower(
    m: Match,
    f: Fragment,
) -> Value:
    """attention with products of bfloat16"""
    body = _body(m)
    rounded = _rounded(body)
    operands = []
    given = zip(m.root.reads, body.inputs, strict=True)
    for v, inner in given:
        lower = inner in rounded
        operands.append(f.cast(v, bfloat16) if lower else v)
    (made,) = f.ops(
        ATTENTION,
        *operands,
        domain=DOMAIN,
        count=1,
        body=_lowered(body),
    )
    return made


def _samples(rng: np.random.Generator) -> Graph:
    """Queries that see one key alone, or all alike, and values that bfloat16 represents."""
    f = Fragment("attention", {})
    one = np.eye(16)[rng.integers(0, 16, 17)]
    q = f.constant(64 * one * rng.integers(0, 2, (17, 1)), float32)
    k, v = (f.constant(a, float32) for a in (np.eye(16), rng.integers(-8, 9, (16, 16))))
    weights = f.op("Softmax", f.op("MatMul", q, k), axis=-1)
    y = f.op("MatMul", weights, v)
    graph = Graph("sample", (), (y,), tuple(f.operations), f.constants)
    return rewrite(graph, [ATTENTION_RULE])


ATTENTION_OF_BFLOAT16 = Rule(
    "attention-of-bfloat16",
    AttentionOperation(),
    _lower,
    when=[_of_floats, _alone, _of_many],
    exact=False,
    samples=_samples,
)
