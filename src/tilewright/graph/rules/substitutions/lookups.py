"""Lookups: rows of a table selected by Gather."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.graph.nodes import Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import (
    Attribute,
    constants,
    onnx,
    tensors,
)
from tilewright.graph.rules.rule import Rule
from tilewright.graph.rules.substitutions.drawing import RandomGraph
from tilewright.graph.rules.substitutions.rows import ROUNDED, UNARY, typed
from tilewright.graph.rules.substitutions.slices import INT_MIN

x, w, index = tensors("x w index")
axis = Attribute("axis", examples=(0, 1, -1), default=0)
known_index = constants("index")[0]
looked_up = onnx.Gather(x, index, axis=axis)
fixed = onnx.Gather(x, known_index, axis=axis)
of_looked_up = UNARY(looked_up).with_attributes()


def _along_rows(m: Match) -> bool:
    """rows of a matrix are looked up"""
    place = m.attribute(axis)
    return len(m[x].extents) == 2 and place in (0, -2)


def _no_more_axes(m: Match) -> bool:
    """w is a matrix, and index has an axis"""
    return len(m[w].extents) == 2 and len(m[index].extents) >= 1


def _lookups(draw: RandomGraph) -> dict[Any, Any]:
    extent = draw.one_of(2, 3)
    table = (extent,) * draw.one_of(2, 2, 2, 3)
    factor = (extent,) * draw.one_of(1, 2, 2, 3)
    shape = (extent,) * draw.one_of(0, 1, 1, 2)
    places = draw.rng.integers(-extent, extent, shape)
    return {
        x: table,
        w: factor,
        index: places,
        axis: draw.one_of(0, 0, 0, 1, -1),
    }


def _evenly_spaced(m: Match) -> bool:
    """index is evenly spaced from its first to its last"""
    found = _places(m)
    if found.ndim != 1 or not found.size:
        return False
    gaps = np.diff(found)
    return bool((gaps == gaps[:1]).all()) and (not gaps.size or bool(gaps[0]))


def _places(m: Match) -> Any:
    """The index, counted from the front."""
    at = m.attribute(axis)
    extent = m[x].extents[at]
    found = m.array(known_index).astype(np.int64)
    return np.where(found < 0, found + extent, found)


def _as_slice(m: Match, f: Fragment) -> Value:
    """Slice(x)"""
    places = np.ravel(_places(m))
    step = int(places[1] - places[0]) if places.size > 1 else 1
    stop = int(places[-1]) + (1 if step > 0 else -1)
    end = INT_MIN if stop < 0 else stop
    at = f.ints(m.attribute(axis))
    return f.op(
        "Slice",
        m[x],
        f.ints(int(places[0])),
        f.ints(end),
        at,
        f.ints(step),
    )


def _indices(draw: RandomGraph) -> dict[Any, Any]:
    extent = 4
    kind = draw.one_of("even", "even", "odd", "constant", "matrix")
    first_place = draw.one_of(0, 1, -1)
    numbers = {
        "even": np.arange(3) if first_place else np.arange(3, -1, -2),
        "odd": draw.rng.integers(-extent, extent, 3),
        "constant": np.array([1, 1]),
        "matrix": np.array([[0], [1]]),
    }
    return {
        x: (extent, extent),
        known_index: numbers[kind],
        axis: draw.one_of(0, 1, -1),
    }


LOOKUPS = (
    Rule(
        "lookup-as-slice",
        fixed,
        _as_slice,
        [_evenly_spaced],
        samples=typed(_indices),
    ),
    Rule(
        "product-into-table",
        looked_up @ w,
        onnx.Gather(x @ w, index, axis=0),
        [_along_rows, _no_more_axes],
        samples=typed(_lookups),
        **ROUNDED,
    ),
    Rule(
        "unary-into-table",
        of_looked_up,
        onnx.Gather(of_looked_up.on(x), index, axis=axis),
        samples=typed(_lookups),
    ),
)
