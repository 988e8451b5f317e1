"""Pieces of random graphs with bodies: If, Loop and Scan, nested now and then.

A body is built like any other graph. It reads values of the enclosing graph and new inputs. Its
operators are continuous, because only the operands of the first iteration are inspected here, and
it ends in an operator that bounds its state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base import dtypes
from tilewright.graph.nodes import Graph, Value
from tilewright.testing import graph_ops as ops
from tilewright.testing.conditioning import far
from tilewright.testing.graphs import (
    FLOATS,
    Array,
    OperatorRejected,
    RandomGraphBuilder,
)

INSIDE = (
    ops.unary,
    ops.unary,
    ops.binary,
    ops.binary,
    ops.where,
    ops.matmul,
    ops.softmax,
    ops.reduction,
    ops.transpose,
    ops.concat,
    ops.slices,
    ops.residual,
    ops.squeeze,
)
DEEPEST = 2  # bodies inside bodies
KEEP = ("Tanh", "Sigmoid", "Softsign", "Sin")


def branch(b: RandomGraphBuilder) -> None:
    """An If on a constant, an input, or a computed value; its results have one type."""
    x = b.pick(lambda v: v.dtype in FLOATS)
    condition = _condition(b)
    count = b.one_of(1, 1, 2)

    def results(inner: RandomGraphBuilder) -> list[Value]:
        wanted = [x] * count
        return _like(inner, wanted)

    bodies = {
        "then_branch": _body(b, (), results),
        "else_branch": _body(b, (), results),
    }
    b.control("If", [condition], bodies)


def loop(b: RandomGraphBuilder) -> None:
    """A Loop whose state keeps its type; it ends by count, by a condition, or by both."""
    count_of_states = b.one_of(0, 1, 1, 2)
    states = [b.pick(lambda v: v.dtype in FLOATS) for _ in range(count_of_states)]
    trips = np.array(b.one_of(0, 1, 2, 3, 3, 5), np.int64)
    end = b.one_of("count", "count", "count", "first", "early", "condition")
    first: Value | None = None
    if end == "first":
        first = b.given(np.array(b.chance(0.7)), b.chance(0.5))
    elif end != "count" or b.chance(0.5):
        first = b.given(np.array(True))
    if end == "condition":
        count = None
    else:
        count = b.given(trips, b.chance(0.6))
    if end in ("early", "condition"):
        last = b.given(trips - 1, b.chance(0.6))
    else:
        last = None
    iteration = _input(b, np.array(0, np.int64))
    condition = _input(b, np.array(True))
    inputs = [iteration, condition]
    inputs += [_input(b, b.truth[s], s) for s in states]

    def results(inner: RandomGraphBuilder) -> list[Value]:
        if last is None:
            again = inner.op("Identity", condition)
        else:
            again = inner.op("Less", iteration, last)
        wanted = inputs[2:]
        new_states = _like(inner, wanted)
        return [again, *new_states, *_scanned(inner, not states)]

    body = _body(b, inputs, results)
    b.control("Loop", [count, first, *states], {"body": body})


def scan(b: RandomGraphBuilder) -> None:
    """A Scan over one sequence or two, forwards or backwards, along an axis of each."""
    first = b.pick(lambda v: v.dtype in FLOATS and len(v.extents) > 0)
    axis = b.rng.randrange(len(first.extents))
    length = first.extents[axis]
    sequences = [first]
    axes = [axis]
    if b.chance(0.4):
        rest = b.shape(b.rng.randint(0, 2))
        at = b.rng.randint(0, len(rest))
        shape = (*rest[:at], length, *rest[at:])
        sequences.append(b.leaf(shape, first.dtype))
        axes.append(at)
    states = []
    for _ in range(b.one_of(0, 1, 1)):
        states.append(b.pick(lambda v: v.dtype is first.dtype))
    if not length:
        raise OperatorRejected
    inputs = [_input(b, b.truth[s], s) for s in states]
    for s, at in zip(sequences, axes, strict=True):
        item = np.take(b.truth[s], 0, at).astype(_numpy(s))
        inputs.append(_input(b, item))

    def results(inner: RandomGraphBuilder) -> list[Value]:
        wanted = inputs[: len(states)]
        new_states = _like(inner, wanted)
        return [*new_states, *_scanned(inner, not states)]

    body = _body(b, inputs, results)
    made = len(body.outputs) - len(states)
    attributes: dict[str, Any] = {
        "body": body,
        "num_scan_inputs": len(sequences),
    }
    if any(axes) or b.chance(0.2):
        attributes["scan_input_axes"] = axes
    if b.chance(0.4):
        directions = [b.rng.randint(0, 1) for _ in sequences]
        attributes["scan_input_directions"] = directions
    if b.chance(0.4):
        directions = [b.rng.randint(0, 1) for _ in range(made)]
        attributes["scan_output_directions"] = directions
    if b.chance(0.4):
        ranks = [len(v.extents) for v in body.outputs[len(states) :]]
        attributes["scan_output_axes"] = [b.rng.randint(0, rank) for rank in ranks]
    b.control("Scan", [*states, *sequences], attributes)


# ------------------------------------------------------------------------------- bodies


def _body(
    b: RandomGraphBuilder,
    inputs: Sequence[Value],
    results: Any,
) -> Graph:
    """The graph of a body with these inputs. results: adds its results in its Builder."""
    if b.depth == DEEPEST:
        raise OperatorRejected
    around = b.rng.sample(b.values, min(len(b.values), 3))
    inner = b.inside([*around, *(v for v in inputs if v.dtype in FLOATS)])
    for _ in range(b.one_of(1, 1, 2, 3)):
        nested = b.chance(0.05)
        if nested:
            piece = b.one_of(branch, loop)
        else:
            piece = b.rng.choice(INSIDE)
        try:
            piece(inner)
        except OperatorRejected:
            continue
    return inner.body(inputs, results(inner))


def _input(
    b: RandomGraphBuilder,
    array: Array,
    like: Value | None = None,
) -> Value:
    """An input of a body, with its value in the first iteration."""
    dtype = dtypes.dtype_of(array.dtype) if like is None else like.dtype
    name = b.fresh("b")
    value = Value(name, dtype, array.shape)
    b.truth[value] = array
    return value


def _like(b: RandomGraphBuilder, wanted: Sequence[Value]) -> list[Value]:
    """Results of the same types as others, computed from them and from values of the body."""
    return [b.op(b.rng.choice(KEEP), _joined(b, x)) for x in wanted]


def _joined(b: RandomGraphBuilder, x: Value) -> Value:
    """`x` combined with another value that broadcasts to it, if there is one."""
    try:
        other = b.pick(lambda v: v.dtype is x.dtype and ops.fits(v, x))
        return b.op(b.one_of("Add", "Mul", "Sub"), x, other)
    except OperatorRejected:
        return x


def _scanned(b: RandomGraphBuilder, least: bool) -> list[Value]:
    """Bounded values that each iteration outputs; `least`: at least one."""
    if least:
        count = b.one_of(1, 1, 2)
    else:
        count = b.one_of(0, 1, 1)
    small = [v for v in b.values if v.dtype in FLOATS and len(v.extents) < 4]
    if not small:
        raise OperatorRejected
    found = []
    for _ in range(count):
        name = b.rng.choice(KEEP)
        found.append(b.op(name, b.rng.choice(small)))
    return found


def _condition(b: RandomGraphBuilder) -> Value:
    """A truth value of one element."""
    way = b.one_of("input", "input", "constant", "computed", "several")
    if way == "computed":
        some = b.pick(lambda v: v.dtype in FLOATS and v.extents)
        x = b.op("ReduceMean", some, keepdims=0)
        distance = b.truth[x]
        far(distance, x.dtype)
        return b.op("Greater", x, b.scalar(0, x))
    if way == "several":
        both = [b.given(np.array(b.chance(0.5)), False) for _ in range(2)]
        return b.op(b.one_of("And", "Or", "Xor"), *both)
    shape = b.one_of((), (), (1,))
    filler = b.chance(0.5)
    return b.given(np.full(shape, filler), way == "constant")


def _numpy(x: Value) -> Any:
    assert x.dtype is not None
    return x.dtype.numpy


CONTROL: dict[str, tuple[ops.Piece, float]] = {
    f.__name__: (f, weight)
    for f, weight in (
        (branch, 1.5),
        (loop, 1.5),
        (scan, 1.5),
    )
}
