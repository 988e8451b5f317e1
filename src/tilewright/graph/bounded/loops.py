"""Loop and Scan as one operator with a closed body on bounded tensors (`iterations`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tilewright.base.dtypes import bool_
from tilewright.graph.bounded.bodies import Body
from tilewright.graph.bounded.builder import BoundedBuilder
from tilewright.graph.bounded.context import Results
from tilewright.graph.bounded.extents import most
from tilewright.graph.bounded.iterations import Iteration, LoopSource, looped, scalar
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.broadcasting import inserted, without

if TYPE_CHECKING:
    from tilewright.graph.bounded.bound import Env, OperatorWalk

FOREVER = (1 << 63) - 1


def loop(walk: OperatorWalk, op: Operation, env: Env) -> Results | None:
    """The results of a Loop; None if something has no bound or no native code."""
    body: Graph = op.attributes["body"]
    if not _tensors(op, body):
        return None
    b = walk.builder
    inputs = [None if v is None else env.get(v, v) for v in op.inputs]
    first, going, *states = inputs
    given = [v for v in states if v is not None]
    if len(given) < len(states) or not all(v.static for v in given):
        return None
    known = None if first is None else walk.context.contents.ints(first)
    bound = None if known is None else max(most(known[0]), 0)

    def step(inner: Body, number: Value, now: list[Value]) -> Iteration:
        made = inner.walk.builder
        number = _shaped(made, number, body.inputs[0])
        goes = _shaped(
            made,
            made.constant(True, bool_),
            body.inputs[1],
        )
        inner.env |= dict(zip(body.inputs, [number, goes, *now], strict=True))
        again, *results = inner.run(body)
        return again, results[: len(now)], results[len(now) :]

    trips = b.constant(FOREVER) if first is None else scalar(b, first)
    goes_on = b.constant(True, bool_) if going is None else scalar(b, going)
    source = LoopSource(op, trips, bound, goes_on, tuple(given), step)
    return looped(walk, source, env)


def scan(walk: OperatorWalk, op: Operation, env: Env) -> Results | None:
    """The results of a Scan, as a Loop over the positions of its sequences."""
    body: Graph = op.attributes["body"]
    if op.version < 9 or not _tensors(op, body):
        return None
    b = walk.builder
    given = [env.get(v, v) for v in op.inputs if v is not None]
    count = int(op.attributes["num_scan_inputs"])
    kept = len(given) - count
    states = given[:kept]
    sequences = given[kept:]
    if not all(v.static for v in given) or not count:
        return None
    extents = [b.dims(v) for v in sequences]
    pairs = zip(_per_scan(op, "scan_input_axes", count), extents, strict=True)
    axes = [axis % len(dims) for axis, dims in pairs]
    length, *others = [dims[a] for dims, a in zip(extents, axes, strict=True)]
    if any(d != length for d in others):
        return None
    backward = _per_scan(op, "scan_input_directions", count)

    def step(inner: Body, number: Value, now: list[Value]) -> Iteration:
        made = inner.walk.builder
        last = made.scalar(made.number("Sub", length, 1))
        turned = made.op("Sub", last, number) if any(backward) else number
        items = []
        for v, axis, back in zip(sequences, axes, backward, strict=True):
            place = turned if back else number
            item = made.op("Gather", v, place, axis=axis)
            dims = made.dims(v)
            items.append(made.sized(item, without(dims, axis)))
        inner.env |= dict(zip(body.inputs, [*now, *items], strict=True))
        results = inner.run(body)
        again = made.constant(True, bool_)
        return again, results[: len(now)], results[len(now) :]

    going = b.constant(True, bool_)
    bound = max(most(length), 0)
    source = LoopSource(op, b.scalar(length), bound, going, tuple(states), step)
    found = looped(walk, source, env)
    if found is None:
        return None
    stacked = _placed(b, op, found[kept:])
    return [*found[:kept], *stacked]


def _placed(
    b: BoundedBuilder, op: Operation, stacked: Sequence[Value | None]
) -> Results:
    """The stacked items of a Scan in the order and along the axis that it asks for."""
    backward = _per_scan(op, "scan_output_directions", len(stacked))
    axes = _per_scan(op, "scan_output_axes", len(stacked))
    found: Results = []
    for v, back, axis in zip(stacked, backward, axes, strict=True):
        assert v is not None
        dims = b.dims(v)
        if back:
            last = b.scalar(b.number("Sub", dims[0], 1))
            places = b.op("Sub", last, b.iota(most(dims[0])))
            inside = b.op("Max", places, b.constant(0))
            v = b.sized(b.op("Gather", v, inside, axis=0), dims)
        place = axis % len(dims)
        if place:
            order = inserted(range(1, len(dims)), place, 0)
            moved = b.op("Transpose", v, perm=list(order))
            v = b.sized(moved, [dims[n] for n in order])
        found.append(v)
    return found


def _tensors(op: Operation, body: Graph) -> bool:
    flowing = (*op.reads, *op.writes, *body.inputs, *body.outputs)
    return all(v.kind == "tensor" for v in flowing)


def _per_scan(op: Operation, name: str, count: int) -> list[int]:
    return list(op.attr(name) or [0] * count)


def _shaped(b: BoundedBuilder, v: Value, like: Value) -> Value:
    """A scalar in the one-element shape that a body declares."""
    rank = len(like.shape or ())
    return v if not rank else b.op("Reshape", v, b.constant([1] * rank))
