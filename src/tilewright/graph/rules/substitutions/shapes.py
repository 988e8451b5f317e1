"""Other shapes for the same elements."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.graph.nodes import Value
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import (
    Computed,
    one_of,
    onnx,
    tensors,
)
from tilewright.graph.rules.rule import Rule, SampleApplication
from tilewright.graph.rules.substitutions.drawing import RandomGraph, drawn
from tilewright.graph.rules.substitutions.motion import order, perm
from tilewright.graph.rules.substitutions.rows import BINARY, typed

x, y = tensors("x y")
reshape = one_of(onnx.Reshape, onnx.Flatten, onnx.Squeeze, onnx.Unsqueeze)
shaped = reshape(reshape(x, ...).with_attributes(), ...).with_attributes()
result_shape = Computed(
    "its shape",
    lambda m: np.array(m.result.extents, np.int64),
)
as_result = onnx.Reshape(x, result_shape, allowzero=1)


def _reshapes(draw: RandomGraph) -> list[Value]:
    value = draw.input(*draw.one_of((2, 3), (1, 2, 3), (2, 1, 1, 3), (0, 2)))
    for _ in range(2):
        way = draw.one_of("Reshape", "Flatten", "Unsqueeze")
        if way == "Reshape":
            value = draw.f.op(
                way,
                value,
                draw.f.ints(*draw.one_of((3, -1), (1, -1))),
            )
        elif way == "Flatten":
            value = draw.f.op(way, value, axis=draw.one_of(0, 1))
        else:
            value = draw.f.op(way, value, draw.f.ints(draw.one_of(0, 1)))
    return [value]


def _order_kept(m: Match) -> bool:
    """axes of more than one element keep their order"""
    extents = m[x].extents
    moved = [n for n in order(m, perm, x) if extents[n] != 1]
    return moved == sorted(moved)


def _turned(draw: RandomGraph) -> dict[Any, Any]:
    by = draw.one_of([1, 0], [0, 2, 1], [2, 0, 1], [1, 0, 2])
    return {
        x: tuple(draw.one_of(1, 1, 2, 3) for _ in by),
        perm: by,
    }


expanded = onnx.Expand(y, ...)
spread = BINARY(x, expanded)


def _spreads(draw: RandomGraph) -> dict[Any, Any]:
    shape = (draw.extent(1, 3), draw.extent(1, 3))
    target = draw.one_of(shape, (2, *shape), (1, 1))
    small = tuple(draw.one_of(1, n) for n in shape)
    return {
        x: shape,
        y: small,
        expanded: SampleApplication(more=(np.array(target),)),
    }


SHAPES = (
    Rule(
        "shape-of-a-shape",
        shaped,
        as_result,
        samples=drawn(_reshapes),
    ),
    Rule(
        "transpose-as-shape",
        onnx.Transpose(x, perm=perm),
        as_result,
        [_order_kept],
        samples=typed(_turned),
    ),
    Rule(
        "expand-in-binary",
        spread,
        spread.on(x, y),
        samples=typed(_spreads),
    ),
)
