"""Resizes whose ratio differs from size to size: their positions are computed by the code.

A ratio that all sizes of a range share gives one rule for positions. Otherwise (a map is resized to
the size of another, or with aligned corners), positions are numbers that each size has for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from tilewright.base.errors import TilewrightError
from tilewright.driver.ranges.sample_points import pattern
from tilewright.driver.ranges.size_terms import Extents
from tilewright.graph.nodes import Graph, Operation
from tilewright.graph.ops.resize import can_compute
from tilewright.graph.specialize import InferredTypes
from tilewright.runtime.dispatch import Allowed

NEIGHBORS: Final = 4  # values beside the pattern that tell a ratio from a rounded one


def with_computed_positions(
    graph: Graph, allowed: Allowed, typing_at: Callable[[Extents], InferredTypes]
) -> Graph:
    """The graph with the axes of such resizes named; typing_at: as of `RangedBuilder`."""
    resizes = [op for op in graph.operations if can_compute(op, graph.constants)]
    if not resizes:
        return graph
    typings = list(_typings(allowed, typing_at))
    found = {}
    for op in resizes:
        axes = _axes(op, typings)
        if axes:
            found[op] = replace(op, attributes={**op.attributes, "computed": axes})
    operations = tuple(found.get(op, op) for op in graph.operations)
    return replace(graph, operations=operations) if found else graph


def _typings(
    allowed: Allowed, typing_at: Callable[[Extents], InferredTypes]
) -> Iterator[InferredTypes]:
    """The types at the ends, at the pattern, and beside it, where the graph is valid."""
    start = pattern(allowed)
    points = [{n: end(e) for n, e in allowed.items()} for end in (min, max)]
    points.append(start)
    for name, extents in allowed.items():
        middle = start[name]
        near = sorted((abs(n - middle), n) for n in extents)
        points += [{**start, name: n} for _, n in near[1 : 1 + NEIGHBORS]]
    for point in points:
        try:
            yield typing_at(point)
        except TilewrightError:  # not a size that the model can have
            continue


def _axes(op: Operation, typings: list[InferredTypes]) -> tuple[int, ...]:
    """The axes that are resized, if a ratio differs, or positions depend on the size anyway."""
    pairs = [_extents(op, t) for t in typings]
    known = [p for p in pairs if p is not None]
    if len({len(p) for p in known}) != 1:
        return ()
    by_axis = list(zip(*known, strict=True))
    corners = op.attributes.get("coordinate_transformation_mode") == "align_corners"
    resized = [n for n, ends in enumerate(by_axis) if any(a != b for a, b in ends)]
    told = (
        len(set(by_axis[n])) > 1 if corners else _ratios_differ(by_axis[n])
        for n in resized
    )
    return tuple(resized) if any(told) else ()


def _ratios_differ(ends: tuple[tuple[int, int], ...]) -> bool:
    (first, made), *others = ends
    return any(first * b != made * a for a, b in others)


def _extents(op: Operation, typing: InferredTypes) -> list[tuple[int, int]] | None:
    """The extents of the operand and of the result, axis by axis."""
    data = op.reads[0]
    result = op.writes[0]
    before, after = (typing.env.get(v, v) for v in (data, result))
    if not before.static or not after.static:
        return None
    return list(zip(before.extents, after.extents, strict=True))
