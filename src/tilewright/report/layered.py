"""A layered drawing of a directed graph: places boxes and edges by Sugiyama's four steps.

Layers follow longest paths; an edge across several layers has a bend point in each of them; layers
are ordered by the mean place of their neighbors; coordinates minimize squared distances subject to
the spacing of boxes (isotonic regression).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from tilewright.base.dataclass import dataclass

_SWEEPS: Final = 12
_BEND: Final = 6.0  # width of an edge where it passes a layer
# How much more a bend counts than a box, to keep long edges straight.
_STRAIGHT: Final = 8.0

Point = tuple[float, float]
Ends = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Layout:
    """places: the middle of the upper edge of each box. routes: the points of each edge."""

    places: Sequence[Point]
    routes: Sequence[Sequence[Point]]
    width: float
    height: float


def layout(
    sizes: Sequence[Point], ends: Ends, gap: float = 20, rise: float = 34
) -> Layout:
    """Places for boxes of these sizes (width, height) in pixels; edges lead downwards.

    ends: source and target of each edge; of a cycle, which no model has, an edge is dropped from
    the layers. gap, rise: between boxes of a layer, and between layers.
    """
    if not sizes:
        return Layout([], [], 0.0, 0.0)
    chains, depth, links = _with_bends(len(sizes), ends)
    widths = [w for w, _ in sizes] + [_BEND] * (len(depth) - len(sizes))
    layers: list[list[int]] = [[] for _ in range(max(depth) + 1)]
    for n, d in enumerate(depth):
        layers[d].append(n)
    near = _neighbors(len(depth), links)
    _order(layers, near)
    weights = [1.0] * len(sizes) + [_STRAIGHT] * (len(depth) - len(sizes))
    xs = _across(layers, near, widths, weights, gap)
    heights = [
        max((sizes[n][1] for n in layer if n < len(sizes)), default=0.0)
        for layer in layers
    ]
    tops = [0.0]
    for height in heights:
        tops.append(tops[-1] + height + rise)
    left = min(x - w / 2 for x, w in zip(xs, widths, strict=True))
    xs = [x - left for x in xs]
    places = [(xs[n], tops[depth[n]]) for n in range(len(sizes))]
    routes = []
    for chain in chains:
        points = [(xs[chain[0]], tops[depth[chain[0]]] + sizes[chain[0]][1])]
        for n in chain[1:-1]:
            middle = tops[depth[n]]
            points += [(xs[n], middle), (xs[n], middle + heights[depth[n]])]
        routes.append([*points, (xs[chain[-1]], tops[depth[chain[-1]]])])
    width = max(x + w / 2 for x, w in zip(xs, widths, strict=True))
    return Layout(places, routes, width, tops[-1] - rise)


def _with_bends(
    count: int, ends: Ends
) -> tuple[list[list[int]], list[int], list[tuple[int, int]]]:
    """Edges as chains of nodes in neighboring layers, the layer of each node, and the links."""
    depth = _depths(count, ends)
    chains: list[list[int]] = []
    for source, target in ends:
        chain = [source]
        for between in range(depth[source] + 1, depth[target]):
            chain.append(len(depth))
            depth.append(between)
        chains.append([*chain, target])
    links = [
        pair
        for chain in chains
        for pair in pairwise(chain)
        if depth[pair[0]] < depth[pair[1]]
    ]
    return chains, depth, links


def _depths(count: int, ends: Ends) -> list[int]:
    """The longest way to each node; what nothing leads to sits right above its first reader."""
    below: list[list[int]] = [[] for _ in range(count)]
    missing = [0] * count
    for source, target in ends:
        below[source].append(target)
        missing[target] += 1
    depth = [0] * count
    order = [n for n in range(count) if not missing[n]]
    roots = list(order)
    for n in order:
        for m in below[n]:
            depth[m] = max(depth[m], depth[n] + 1)
            missing[m] -= 1
            if not missing[m]:
                order.append(m)
    for n in roots:
        depth[n] = max(0, min((depth[m] for m in below[n]), default=1) - 1)
    return depth


def _neighbors(
    count: int, links: Sequence[tuple[int, int]]
) -> tuple[list[list[int]], list[list[int]]]:
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for source, target in links:
        below[source].append(target)
        above[target].append(source)
    return above, below


def _order(
    layers: list[list[int]], near: tuple[list[list[int]], list[list[int]]]
) -> None:
    """Sort each layer by the mean place of its neighbors, in alternating sweeps down and up."""
    place = {n: float(i) for layer in layers for i, n in enumerate(layer)}
    for sweep in range(_SWEEPS):
        side = near[sweep % 2]
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            wish = {n: _mean([place[m] for m in side[n]], place[n]) for n in layer}
            layer.sort(key=wish.__getitem__)
            for i, n in enumerate(layer):
                place[n] = float(i)


def _across(
    layers: Sequence[Sequence[int]],
    near: tuple[list[list[int]], list[list[int]]],
    widths: Sequence[float],
    weights: Sequence[float],
    gap: float,
) -> list[float]:
    """The middle of each node: near its neighbors', in order and apart."""
    xs = [0.0] * len(widths)
    for layer in layers:
        _spread(layer, [0.0] * len(layer), xs, widths, weights, gap)
    for sweep in range(_SWEEPS):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            both = (near[0][n] + near[1][n] for n in layer)
            wish = [
                _mean([xs[m] for m in around], xs[n])
                for n, around in zip(layer, both, strict=True)
            ]
            _spread(layer, wish, xs, widths, weights, gap)
    return xs


def _spread(
    layer: Sequence[int],
    wish: Sequence[float],
    xs: list[float],
    widths: Sequence[float],
    weights: Sequence[float],
    gap: float,
) -> None:
    """The positions nearest to the desired ones without overlapping boxes: pooled violators."""
    offsets, at = [], 0.0
    for left, n in zip([None, *layer], layer, strict=False):
        if left is not None:
            at += (widths[left] + widths[n]) / 2 + gap
        offsets.append(at)
    pools: list[list[float]] = []  # sum of weighted places, weight, count
    for n, desired, offset in zip(layer, wish, offsets, strict=True):
        pools.append([weights[n] * (desired - offset), weights[n], 1])
        while len(pools) > 1 and _middle(pools[-2]) > _middle(pools[-1]):
            last = pools.pop()
            pools[-1] = [a + b for a, b in zip(pools[-1], last, strict=True)]
    found = [_middle(pool) for pool in pools for _ in range(int(pool[2]))]
    for n, x, offset in zip(layer, found, offsets, strict=True):
        xs[n] = x + offset


def _middle(pool: Sequence[float]) -> float:
    return pool[0] / pool[1]


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
