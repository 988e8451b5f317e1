"""Which rows a product of tiles (AMX) makes at once, and what it takes by the cost model.

A tile has up to 16 rows, which lie at equal distances in memory: a part of the innermost dimension
of rows, cut evenly. Several of them share the tiles of columns: more of that dimension, or steps of
the one around it, as rows of an image that is narrower than two tiles.
"""

from __future__ import annotations

import math

from tilewright.base.dataclass import dataclass
from tilewright.base.numbers import ceil_div
from tilewright.targets.cpu.cost import CostModel
from tilewright.targets.cpu.intrinsics import TILE, tile_groups
from tilewright.targets.cpu.sketches.register_tile_model import Tile


@dataclass(frozen=True, slots=True)
class AmxProduct:
    """rows, columns: extents of the results, innermost last. lanes: of a vector. batch: how many
    such products. depth: elements of the reduction. inside: of these, in one step."""

    rows: tuple[int, ...]
    columns: int
    lanes: int
    batch: int
    depth: int
    inside: int


def row_groups(rows: int) -> tuple[int, int]:
    """A tile's extent along a dimension as groups of equally many rows: their number, and rows."""
    least = ceil_div(rows, TILE)
    groups = next(n for n in range(least, rows + 1) if rows % n == 0)
    return groups, rows // groups


def shapes(of: AmxProduct, width: int) -> list[Tile]:
    """The tiles that a product of tiles with so many columns may make at once."""
    *lead, last = of.rows or (1,)
    most = tile_groups(width)
    even = ceil_div(last, ceil_div(last, TILE))
    ones = (1,) * len(lead)
    found = [(*ones, even)]
    for groups in range(2, most + 1):
        times = ceil_div(last, groups * TILE)
        rows = min(ceil_div(last, groups * times), last // groups)
        if rows > TILE // 2:
            found.append((*ones, groups * rows))
        if lead and lead[-1] >= groups:
            found.append((*ones[:-1], groups, even))
    tiles = (f[-len(of.rows) :] if of.rows else () for f in dict.fromkeys(found))
    return [Tile(f, width // of.lanes, of.lanes) for f in tiles]


def best_shape(of: AmxProduct, width: int, costs: CostModel) -> tuple[float, Tile]:
    """Cycles of the whole with the shape that takes fewest, and that shape."""
    taken = [(_cycles(of, t, costs), n, t) for n, t in enumerate(shapes(of, width))]
    cycles, _, tile = min(taken, key=lambda found: found[:2])
    return cycles, tile


def _cycles(of: AmxProduct, tile: Tile, costs: CostModel) -> float:
    """Products take a cycle per row of a tile; a line of an operand arrives in one, beside them."""
    *lead, last = tile.rows or (1,)
    groups, rows = row_groups(last)
    groups *= math.prod(lead)
    across = tile.width // TILE
    steps = ceil_div(of.depth, of.inside)
    panel = steps * tile.width * costs.machine.line  # the depth of a tile is a line
    line = 1 if panel <= costs.machine.l1 else costs.tile_far
    loads = groups * rows + across * TILE * line
    products = groups * across * max(rows, costs.tile_least)
    whole = groups * across * costs.tile_result
    times = of.batch * ceil_div(of.columns, tile.width)
    for extent, factor in zip(of.rows, tile.rows, strict=True):
        times *= ceil_div(extent, factor)
    return times * (steps * max(products, loads) + whole)


def dot_cycles(of: AmxProduct, word: int, costs: CostModel) -> float:
    """Cycles of the same by dot products in vectors, each of `word` elements of the reduction."""
    columns = ceil_div(of.columns, of.lanes) * math.prod(of.rows) * of.batch
    return columns * ceil_div(of.depth, word) / costs.dot_products
