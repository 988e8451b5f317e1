"""Products with a common operand merged into one product."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.nodes import Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import (
    onnx,
)
from tilewright.graph.rules.rule import (
    Condition,
)
from tilewright.graph.rules.substitutions.drawing import (
    RandomGraph,
    drawn,
)
from tilewright.graph.rules.substitutions.siblings import (
    merge,
    operands,
)


def _same_but(place: int, axis: int) -> Condition:
    """The condition that operands can be concatenated along an axis."""

    def condition(m: Match) -> bool:
        shapes = []
        for v in operands(m, place):
            if not v.static or len(v.extents) < 2:
                return False
            extents = list(v.extents)
            extents[axis] = 0
            shapes.append(extents)
        return all(shape == shapes[0] for shape in shapes)

    which = "columns" if axis == -1 else "rows"
    side = "right" if place else "left"
    condition.__doc__ = f"the {side} operands are matrices that differ only in {which}"
    return condition


def _split(f: Fragment, y: Value, like: Sequence[Value], axis: int) -> list[Value]:
    """The parts of a product that belong to the concatenated operands."""
    sizes = [v.extents[axis] for v in like]
    return f.split(y, sizes, axis=axis)


def _one_left(m: Match, f: Fragment) -> Sequence[Value]:
    """Split(x @ Concat(y...))"""
    right = operands(m, 1)
    together = f.op("Concat", *right, axis=-1)
    return _split(
        f,
        f.op("MatMul", m.root.inputs[0], together),
        right,
        -1,
    )


def _one_right(m: Match, f: Fragment) -> Sequence[Value]:
    """Split(Concat(y...) @ x)"""
    left = operands(m, 0)
    together = f.op("Concat", *left, axis=-2)
    return _split(
        f,
        f.op("MatMul", together, m.root.inputs[1]),
        left,
        -2,
    )


def _shape(draw: RandomGraph, rows: int, columns: int) -> tuple[int, ...]:
    shape: tuple[int, ...] = (rows, columns)
    if draw.maybe(0.3):
        shape = (2, *shape)
    elif draw.maybe(0.2):
        shape = shape[:1] if draw.maybe() else shape[1:]
    return shape


def _of_one_left(draw: RandomGraph) -> list[Value]:
    depth = draw.extent()
    x = draw.input(*_shape(draw, draw.extent(), depth))
    count = draw.one_of(2, 2, 3)
    right = [draw.input(*_shape(draw, depth, draw.extent())) for _ in range(count)]
    return [draw.f.op("MatMul", x, y) for y in right]


def _of_one_right(draw: RandomGraph) -> list[Value]:
    depth = draw.extent()
    x = draw.input(*_shape(draw, depth, draw.extent(2)))
    count = draw.one_of(2, 2, 3)
    left = [draw.input(*_shape(draw, draw.extent(), depth)) for _ in range(count)]
    return [draw.f.op("MatMul", y, x) for y in left]


def _shared_matrix(m: Match) -> bool:
    """x is not a vector"""
    x = m.root.inputs[1]
    return x is not None and x.static and len(x.extents) >= 2


MERGED_PRODUCTS = (
    merge(
        "merge-products-of-one-left-operand",
        onnx.MatMul,
        0,
        _one_left,
        [_same_but(1, -1)],
        drawn(_of_one_left),
    ),
    merge(
        "merge-products-of-one-right-operand",
        onnx.MatMul,
        1,
        _one_right,
        [_same_but(0, -2), _shared_matrix],
        drawn(_of_one_right),
    ),
)
