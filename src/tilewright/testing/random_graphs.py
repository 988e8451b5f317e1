"""Seeded random graphs: the same number, the same graph."""

from __future__ import annotations

import random
from collections.abc import Mapping

from tilewright.base import dtypes
from tilewright.graph.infer import Fallback
from tilewright.graph.nodes import Value
from tilewright.testing.graph_ops import PIECES, Piece
from tilewright.testing.graphs import Builder, Case, Rejected
from tilewright.testing.steering import Steering


def random_case(
    seed: int,
    operators: int | None = None,
    fallback: Fallback | None = None,
    *,
    pieces: Mapping[str, tuple[Piece, float]] = PIECES,
    steering: Steering | None = None,
) -> Case:
    """The graph number `seed`, of about `operators` operators (None: 5 to 40).

    steering: weighs the pieces, and is told those taken; the graph then depends on it, too.
    """
    from tilewright.frontends.onnx.reference import OnnxFallback

    rng = random.Random(seed)
    b = Builder(rng, fallback or OnnxFallback(), zeros=rng.random() < 0.05)
    dtype = rng.choice([dtypes.float32] * 12 + [dtypes.float64, dtypes.float16])
    for _ in range(rng.randint(1, 3)):
        b.leaf(b.shape(), dtype, fixed=False)
    wanted = rng.choice((5, 5, 8, 12, 20, 40)) if operators is None else operators
    names, weights = list(pieces), [w for _, w in pieces.values()]
    taken: list[str] = []
    if steering is not None:
        steering.taken = taken
    for _ in range(wanted * 8):
        if len(b.typer.operations) >= wanted:
            break
        if steering is not None:
            weights = [steering.weight(name, usual) for name, (_, usual) in pieces.items()]
        name = rng.choices(names, weights)[0]
        try:
            pieces[name][0](b)
        except Rejected:
            continue
        taken.append(name)
    graph = b.graph(outputs_of(b))
    return Case(graph, {v.name: a for v, a in b.inputs.items()})


def outputs_of(b: Builder) -> list[Value]:
    """What nothing reads, some inner values, now and then an input or one output twice."""
    read = {v for op in b.typer.operations for v in op.reads}
    found = [v for op in b.typer.operations for v in op.writes if v not in read]
    inner = [v for op in b.typer.operations for v in op.writes if v in read]
    found += b.rng.sample(inner, min(len(inner), b.rng.choice((0, 0, 1, 2))))
    if b.rng.random() < 0.1 or not found:
        found.append(b.rng.choice(list(b.inputs)))
    if b.rng.random() < 0.1:
        found.append(b.rng.choice(found))
    if b.rng.random() < 0.05 and b.typer.known:
        found.append(b.rng.choice(list(b.typer.known)))
    b.rng.shuffle(found)
    return found
