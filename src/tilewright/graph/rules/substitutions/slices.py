"""Slices of slices."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.graph.nodes import Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import (
    constants,
    maybe,
    onnx,
    tensors,
)
from tilewright.graph.rules.rule import Rule
from tilewright.graph.rules.substitutions.drawing import RandomGraph
from tilewright.graph.rules.substitutions.rows import typed

x = tensors("x")[0]
INT_MIN = np.iinfo(np.int64).min
starts, ends, axes, steps = constants("starts ends axes steps")
starts2, ends2, axes2, steps2 = constants("starts' ends' axes' steps'")
inner = onnx.Slice(x, starts, ends, maybe(axes), maybe(steps))
outer = onnx.Slice(inner, starts2, ends2, maybe(axes2), maybe(steps2))


def sliced(m: Match, parts: Any, ranges: dict[int, range]) -> dict[int, range]:
    """The places that remain along each axis after a Slice with these operands."""
    begin, end, along, step = (m.known(p) for p in parts)
    assert begin is not None and end is not None
    count = len(begin)
    along = np.arange(count) if along is None else along
    step = np.ones(count, int) if step is None else step
    found = dict(ranges)
    for n in range(count):
        at = int(along[n]) % len(ranges)
        by = slice(int(begin[n]), int(end[n]), int(step[n]))
        found[at] = found[at][by]
    return found


def _one_slice(m: Match, f: Fragment) -> Value:
    """Slice of x by both"""
    whole = {n: range(extent) for n, extent in enumerate(m[x].extents)}
    once = sliced(m, (starts, ends, axes, steps), whole)
    both = sliced(m, (starts2, ends2, axes2, steps2), once)
    changed = {n: r for n, r in both.items() if r != whole[n]}
    stops = [INT_MIN if r.stop < 0 else r.stop for r in changed.values()]
    operands = [
        f.ints(*(r.start for r in changed.values())),
        f.ints(*stops),
        f.ints(*changed),
        f.ints(*(r.step for r in changed.values())),
    ]
    return f.op("Slice", m[x], *operands)


def _slices(draw: RandomGraph) -> dict[Any, Any]:
    rank = draw.one_of(1, 2)
    found: dict[Any, Any] = {x: tuple(draw.one_of(3, 6) for _ in range(rank))}
    for parts in (
        (starts, ends, axes, steps),
        (starts2, ends2, axes2, steps2),
    ):
        count = draw.one_of(1, rank)
        numbers = draw.rng.integers(-8, 9, (2, count))
        along = draw.rng.permutation(rank)[:count]
        by = draw.rng.choice([-2, -1, 1, 2, 3], count)
        plain = draw.maybe(0.3)
        given = (
            *numbers,
            None if plain else along,
            None if plain else by,
        )
        found |= dict(zip(parts, given, strict=True))
    return found


SLICES = (
    Rule(
        "slice-of-a-slice",
        outer,
        _one_slice,
        samples=typed(_slices),
    ),
)
