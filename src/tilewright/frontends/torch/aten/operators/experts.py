"""Mixtures of experts: rows counted and multiplied by group."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tilewright.base.dtypes import float32, int64
from tilewright.frontends.torch.aten.rules import AtenCall, rule
from tilewright.graph.nodes import Value
from tilewright.graph.ops.gathered_matmul import DOMAIN, GATHERED_MATMUL
from tilewright.graph.ops.terms import TensorTerm


@rule("aten.histc")
def _histogram(c: AtenCall) -> Value:
    """The number of elements in each of some equal ranges; the last range includes its end.

    One that depends on the elements is decomposed, see `own.histograms`.
    """
    low = float(c["min"])
    high = float(c["max"])
    bins = int(c["bins"])
    if low == high:
        raise c.refuse("its ranges depend on the elements")
    flat = c.tensor("self", c.dtype)
    flat = c.reshape(flat, [-1])
    x = TensorTerm(c, flat)
    width = high - low
    place = (x - low) * bins / width
    place = place.op("Floor")
    place = place.op("Min", bins - 1)
    above = x >= low
    below = x <= high
    inside = above & below
    place = inside.chosen(place, -1)
    numbers = np.arange(bins)
    numbers = numbers.astype(c.dtype.numpy)
    each = c.build.constant(numbers)
    column = c.unsqueeze(place.value, 1)
    same = c.op("Equal", column, each)
    ones = c.cast(same, int64)
    axes = c.ints(0)
    counts = c.op("ReduceSum", ones, axes, keepdims=0)
    return c.cast(counts, c.dtype)


@rule("transformers.grouped_mm_fallback", "aten._grouped_mm")
def _grouped_product(c: AtenCall) -> Value:
    """Each row times the matrix of its group; `offs` holds the ends of the groups.

    Of two matrices, the groups are of the axis summed over: one product for each group.
    """
    if c.has("weight"):
        first, second = "input", "weight"
    else:
        first, second = "self", "mat2"
    ranks = c.rank(first), c.rank(second)
    known = ranks in ((2, 3), (2, 2))
    if c.has("bias") or not c.has("offs") or not known:
        raise c.refuse("its groups are not rows of a matrix")
    x = c.tensor(first)
    w = c.tensor(second)
    rows = c.extent(0, first if ranks == (2, 3) else second)
    if ranks == (2, 3):
        return _times_own(c, x, w, rows)
    perm = [1, 0]
    x = c.op("Transpose", x, perm=perm)
    return _products_by_group(c, x, w, rows)


@rule("transformers.grouped_mm_fallback_backward")
def _gradients_of_grouped_product(c: AtenCall) -> tuple[Value, Value]:
    """The gradients of the rows and of the matrices, which are zeros for an empty group."""
    x = c.tensor("input")
    w = c.tensor("weight")
    g = c.tensor("grad_output")
    rows = c.extent(0, "input")
    transposed = c.op("Transpose", w, perm=[0, 2, 1])
    of_rows = _times_own(c, g, transposed, rows)
    of_weights = _products_by_group(c, x, g, rows)
    return of_rows, of_weights


def _times_own(c: AtenCall, x: Value, w: Value, rows: int | None) -> Value:
    """Each row of x (rows, k) times the matrix of its group in w (groups, k, n); zeros without.

    The rows of a group are cut into tiles of a few rows, the last of which may reach into the next
    group. Each tile is multiplied by its group's matrix, and each row taken from its group's tile.
    """
    groups = _count(c)
    row = _numbers(c, x)
    ends = _ends(c)
    group = _group(c, row, ends)
    there = group < groups
    group = group.op("Min", groups - 1)
    height = tile_height(rows, groups)
    if height == 1:
        tiles = c.unsqueeze(x, 1)
        found = _product(c, tiles, w, group)
    else:
        found = _by_tiles(c, x, w, height, row, group)
    keep = c.unsqueeze(there.value, 1)
    zero = c.number(0)
    return c.op("Where", keep, found, zero)


def tile_height(rows: int | None, groups: int) -> int:
    """The number of rows of a tile: the cheapest; 16 if the number of all rows is unknown.

    On Zen 5, a tile takes as long as its rows and 4 more.
    """
    if rows is None:
        return 16
    heights = [1 << n for n in range(7)]
    times = {}
    for height in heights:
        tiles = most_tiles(rows, groups, height)
        times[height] = tiles * (height + 4)
    return min(times, key=lambda height: times[height])


def most_tiles(rows: int, groups: int, height: int) -> int:
    """The largest number of tiles: each group but one has one row more than full tiles."""
    more = groups * (height - 1)
    tiles = (rows + more) // height
    return min(tiles, rows)


class _Tiles(NamedTuple):
    """Rows cut into tiles of one group each.

    own: the group of each tile. begin: its first row. shift: for each group, how much further a row
    is in all rows of all tiles. Tiles that are not needed begin past the end of the last group.
    """

    own: TensorTerm
    begin: TensorTerm
    shift: TensorTerm

    def places(self, c: AtenCall, height: int) -> TensorTerm:
        """The numbers of the rows of each tile (tiles, height), which may be of another group."""
        column = c.unsqueeze(self.begin.value, 1)
        begin = TensorTerm(c, column)
        within = c.ints(*range(height))
        return begin + within


def _tiles(c: AtenCall, height: int, rows: TensorTerm) -> _Tiles:
    ends = _ends(c)
    groups = _count(c)
    more = groups * (height - 1)
    number = (rows + more) / height
    number = number.op("Min", rows)
    tile = _range(c, number.value)
    by_one = c.ints(1, -1)
    starts = c.op("Pad", ends.value, by_one)
    sizes = ends - starts
    tiles = sizes + (height - 1)
    tiles = tiles / height
    axis = c.number(0, int64)
    last = tiles.op("CumSum", axis)
    first = last - tiles
    shift = first * height
    shift = shift - starts
    own = _group(c, tile, last)
    own = own.op("Min", groups - 1)
    begin = tile * height
    begin = begin - shift.op("Gather", own, axis=0)
    return _Tiles(own, begin, shift)


def _by_tiles(
    c: AtenCall,
    x: Value,
    w: Value,
    height: int,
    row: TensorTerm,
    group: TensorTerm,
) -> Value:
    """The product of each row and its group's matrix.

    row, group: the numbers of the rows, and their groups. A row past the last end is taken from
    anywhere, and not used.
    """
    rows = row.op("Size")
    tiles = _tiles(c, height, rows)
    places = tiles.places(c, height)
    places = places.op("Min", rows - 1)
    parts = c.op("Gather", x, places.value, axis=0)
    found = _product(c, parts, w, tiles.own)
    place = row + tiles.shift.op("Gather", group, axis=0)
    return c.op("Gather", found, place.value, axis=0)


def _product(c: AtenCall, tiles: Value, w: Value, own: TensorTerm) -> Value:
    """Each of tiles (t, rows, k) times its own of the matrices, as rows (t * rows, n)."""
    panel = c.unsqueeze(w, 1)
    found = c.op(GATHERED_MATMUL, tiles, panel, own.value, domain=DOMAIN)
    n = c.op("Shape", w, start=2, end=3)
    rest = c.ints(-1)
    shape = c.op("Concat", rest, n, axis=0)
    return c.op("Reshape", found, shape)


def _products_by_group(
    c: AtenCall,
    x: Value,
    g: Value,
    rows: int | None,
) -> Value:
    """For each group, x (rows, k) transposed times g (rows, n) of its rows: (groups, k, n)."""
    groups = _count(c)
    height = summed_height(rows, groups)
    narrow = c.dtype.bits < float32.bits  # sums of tiles would be rounded
    if height is None or narrow:
        return _products_of_all_rows(c, x, g)
    return _products_of_tiles(c, x, g, height)


def summed_height(rows: int | None, groups: int) -> int | None:
    """The number of rows of a tile whose product is added to its group's; None to multiply all rows
    for each group, which takes no memory for the products of tiles.

    On Zen 5, adding the product of a tile to others takes as long as multiplying 75 rows.
    """
    if rows is None:
        return None
    times: dict[int | None, int] = {}
    times[None] = groups * (rows + 25)
    for n in range(3, 11):
        height = 1 << n
        tiles = most_tiles(rows, groups, height)
        times[height] = tiles * (height + 75)
    return min(times, key=lambda height: times[height])


def _products_of_tiles(
    c: AtenCall,
    x: Value,
    g: Value,
    height: int,
) -> Value:
    """The sums by group of the products of tiles, in which other groups' rows are zeros."""
    row = _numbers(c, x)
    rows = row.op("Size")
    tiles = _tiles(c, height, rows)
    places = tiles.places(c, height)
    ends = _ends(c)
    ends = ends.op("Gather", tiles.own, axis=0)
    end = c.unsqueeze(ends.value, 1)
    inside = places < end
    places = places.op("Min", rows - 1)
    x = _chosen(c, x, places, inside)
    x = c.op("Transpose", x, perm=[0, 2, 1])
    g = _chosen(c, g, places, inside)
    products = c.op("MatMul", x, g)
    matrix = c.op("Shape", products, start=1)
    groups = _count(c)
    count = c.ints(groups)
    shape = c.op("Concat", count, matrix, axis=0)
    zero = c.number(0)
    zeros = c.op("Expand", zero, shape)
    column = c.unsqueeze(tiles.own.value, 1)
    return c.op(
        "ScatterND",
        zeros,
        column,
        products,
        reduction="add",
    )


def _chosen(
    c: AtenCall,
    x: Value,
    places: TensorTerm,
    inside: TensorTerm,
) -> Value:
    """The rows at these places; zeros for those that are not inside."""
    rows = c.op("Gather", x, places.value, axis=0)
    keep = c.unsqueeze(inside.value, 2)
    zero = c.number(0)
    return c.op("Where", keep, rows, zero)


def _products_of_all_rows(c: AtenCall, x: Value, g: Value) -> Value:
    """The products of all rows for each group, (groups, k, n).

    Both are masked: another group's infinity times zero would be NaN.
    """
    groups = _count(c)
    row = _numbers(c, x)
    ends = _ends(c)
    of_row = _group(c, row, ends)
    group = c.unsqueeze(of_row.value, 0, 2)
    numbers = np.arange(groups)
    column = numbers.reshape(-1, 1, 1)
    each = c.build.constant(column)
    own = c.op("Equal", group, each)
    zero = c.number(0)
    x = c.unsqueeze(x, 0)
    x = c.op("Where", own, x, zero)
    g = c.unsqueeze(g, 0)
    g = c.op("Where", own, g, zero)
    x = c.op("Transpose", x, perm=[0, 2, 1])
    return c.op("MatMul", x, g)


def _count(c: AtenCall) -> int:
    """The number of groups."""
    groups = c.extent(0, "offs")
    if groups is None:
        raise c.refuse("its number of groups is known only at run time")
    return groups


def _ends(c: AtenCall) -> TensorTerm:
    """The end of each group, of the rows or of the axis summed over."""
    ends = c.tensor("offs", int64)
    return TensorTerm(c, ends)


def _numbers(c: AtenCall, x: Value) -> TensorTerm:
    """The numbers of the rows of x, from 0."""
    extent = c.op("Shape", x, start=0, end=1)
    count = c.squeeze(extent, 0)
    return _range(c, count)


def _range(c: AtenCall, count: Value) -> TensorTerm:
    """The numbers from 0, as many as there are."""
    zero = c.number(0, int64)
    one = c.number(1, int64)
    numbers = c.op("Range", zero, count, one)
    return TensorTerm(c, numbers)


def _group(c: AtenCall, row: TensorTerm, ends: TensorTerm) -> TensorTerm:
    """The group of each row; the number of groups for a row past the last end."""
    column = c.unsqueeze(row.value, 1)
    limits = c.unsqueeze(ends.value, 0)
    past = TensorTerm(c, column) >= limits
    past = past.cast(int64)
    axes = c.ints(1)
    return past.op("ReduceSum", axes, keepdims=0)
