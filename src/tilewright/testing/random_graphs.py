"""Seeded random graphs: the same number, the same graph."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.base import dtypes
from tilewright.base.errors import ModelError, TilewrightError
from tilewright.frontends.onnx import load
from tilewright.frontends.onnx.export import to_model
from tilewright.graph import interp
from tilewright.graph.infer import FallbackProvider
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.testing.differential import at_shapes, without_shapes
from tilewright.testing.graph_ops import PIECES, Piece
from tilewright.testing.graphs import (
    LARGEST,
    Array,
    Case,
    OperatorRejected,
    RandomGraphBuilder,
)
from tilewright.testing.steering import Steering

OPERATORS = (3, 4, 5, 5, 6, 6, 8, 8, 10, 12, 20, 40)
SIZES = (
    1,
    2,
    3,
    5,
    8,
    16,
    17,
    33,
)  # that extents without a number may have in another call
NUDGE = 1e-3  # by which a value may change without turning a comparison
EASED = 0.03  # the change of a result that this explains, of its peak


def random_case(
    seed: int,
    operators: int | None = None,
    fallback: FallbackProvider | None = None,
    *,
    pieces: Mapping[str, tuple[Piece, float]] = PIECES,
    steering: Steering | None = None,
) -> Case:
    """The graph number `seed`, of about `operators` operators (None: 3 to 40).

    Most are small: the same number of operators covers more settings in many graphs than in few.

    steering: weighs the pieces and records those taken; the graph then depends on it, too.
    """
    from tilewright.frontends.onnx.reference import OnnxFallback

    rng = random.Random(seed)
    b = RandomGraphBuilder(rng, fallback or OnnxFallback(), zeros=rng.random() < 0.05)
    dtype = rng.choice([dtypes.float32] * 12 + [dtypes.float64, dtypes.float16])
    for _ in range(rng.randint(1, 3)):
        b.leaf(b.shape(), dtype, fixed=False)
    if operators is None:
        wanted = rng.choice(OPERATORS)
    else:
        wanted = operators
    names = list(pieces)
    weights = [w for _, w in pieces.values()]
    taken: list[str] = []
    if steering is not None:
        steering.taken = taken
    for _ in range(wanted * 8):
        if len(b.typer.operations) >= wanted:
            break
        if steering is not None:
            weights = [
                steering.weight(name, usual) for name, (_, usual) in pieces.items()
            ]
        name = rng.choices(names, weights)[0]
        try:
            pieces[name][0](b)
        except OperatorRejected:
            continue
        taken.append(name)
    return case_of(b)


def case_of(b: RandomGraphBuilder) -> Case:
    """The finished graph of a Builder, with its inputs.

    A graph with bodies or symbolic extents is imported from a model with the original operators,
    because its import depends on the shapes that the model states.
    """
    inputs = {v.name: a for v, a in b.inputs.items()}
    has_bodies = any(op.subgraphs for op in b.drafts)
    if not b.free and not has_bodies:
        outputs = outputs_of(b, b.typer.operations)
        return Case(b.graph(outputs), inputs)
    outputs = list(dict.fromkeys(outputs_of(b, b.drafts)))
    asked = b.asked(outputs)
    graph = load(_loosened(b, to_model(asked)))
    if not _runs(b, graph, inputs):
        # An empty result of a body has the rank of its type, which is omitted here.
        return Case(load(to_model(asked)), inputs)
    more = 2 if b.free else 0
    others = [_other(b, graph, inputs) for _ in range(more)]
    return Case(graph, inputs, [o for o in others if o is not None])


def _loosened(b: RandomGraphBuilder, model: Any) -> Any:
    """The ModelProto with some shapes omitted; extents may be symbols."""
    if b.free or b.chance(0.5):
        without_shapes(model.graph)
    symbols = {e: f"N{n}" for n, e in enumerate(sorted(b.free))}
    for info in model.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_value in symbols and b.chance(0.8):
                dim.dim_param = symbols[dim.dim_value]
    return model


def _runs(
    b: RandomGraphBuilder,
    graph: Graph,
    inputs: Mapping[str, Array],
) -> bool:
    try:
        interp.evaluate(at_shapes(graph, inputs), inputs, fallback=b.fallback)
    except ModelError:
        return False
    return True


def _other(
    b: RandomGraphBuilder,
    graph: Graph,
    inputs: Mapping[str, Array],
) -> dict[str, Array] | None:
    """Inputs of other extents that suit the graph; None if it does not accept such extents."""
    sizes: dict[str, int] = {}
    for v in graph.inputs:
        for d in v.shape or ():
            if isinstance(d, str) and d not in sizes:
                sizes[d] = b.rng.choice(SIZES)
    made = {}
    for v in graph.inputs:
        a = inputs[v.name]
        dims = zip(v.shape or (), a.shape, strict=True)
        shape = tuple(sizes[d] if isinstance(d, str) else e for d, e in dims)
        if a.size:
            made[v.name] = np.resize(a, shape)
        else:
            made[v.name] = np.zeros(shape, a.dtype)
    if _is_fit(b, graph, made):
        return made
    return None


def _is_fit(
    b: RandomGraphBuilder,
    graph: Graph,
    inputs: Mapping[str, Array],
) -> bool:
    """Whether all values are moderate, and small changes of inputs change them only slightly."""

    def values(given: Mapping[str, Any]) -> dict[str, Array]:
        found = interp.evaluate(
            static,
            given,
            float64=True,
            fallback=b.fallback,
            keep=lambda v: True,
        )
        return {name: np.asarray(a) for name, a in found.items()}

    try:
        static = at_shapes(graph, inputs)
        first = values(inputs)
        if not all(_is_moderate(a) for a in first.values()):
            return False
        for _ in range(2):
            again = values({n: _nudged(b, a) for n, a in inputs.items()})
            if not all(_is_near(a, again[name]) for name, a in first.items()):
                return False
    except (TilewrightError, ArithmeticError, ValueError, KeyError):
        return False
    return True


def _is_moderate(a: Array) -> bool:
    largest = LARGEST.get(a.dtype.kind)
    if largest is None or not a.size:
        return largest is not None
    return bool(np.isfinite(a).all() and np.abs(a).max() <= 10 * largest)


def _nudged(b: RandomGraphBuilder, a: Array) -> Array:
    if a.dtype.kind != "f":
        return a
    factor = 1 + NUDGE * (2 * b.noise.random(a.shape) - 1)
    return np.asarray(a * factor).astype(a.dtype)


def _is_near(a: Array, b: Array) -> bool:
    if a.shape != b.shape:
        return False
    if a.dtype.kind != "f":
        return bool((a == b).all())
    if not a.size:
        return True
    scale = max(1.0, float(np.abs(a).max()))
    return bool(np.abs(a - b).max() <= EASED * scale)


def outputs_of(b: RandomGraphBuilder, operations: Sequence[Operation]) -> list[Value]:
    """What nothing reads, some inner values, now and then an input or one output twice."""
    read = {v for op in operations for v in op.reads}
    made = [v for op in operations for v in op.writes]
    found = [v for v in made if v not in read]
    inner = [v for v in made if v in read]
    count = min(len(inner), b.one_of(0, 0, 1, 2))
    found += b.rng.sample(inner, count)
    if b.chance(0.1) or not found:
        found.append(b.rng.choice(list(b.inputs)))
    if b.chance(0.1):
        found.append(b.rng.choice(found))
    if b.chance(0.05) and b.typer.known:
        found.append(b.rng.choice(list(b.typer.known)))
    b.rng.shuffle(found)
    return found
