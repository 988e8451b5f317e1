"""A product in tiles for tensor cores: the sides of a block, and how its threads share them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

from tilewright.base.dataclass import dataclass
from tilewright.compute.nodes import Dim
from tilewright.expr.affine import affine
from tilewright.targets.cuda.group_intrinsics import GROUP_BLOCK
from tilewright.targets.cuda.machine import WARP
from tilewright.targets.cuda.tensor_units import MMA, TensorUnit
from tilewright.targets.simt.products import Product
from tilewright.targets.simt.tiling import DimensionShare, Tiling

RESULT_PADDING: Final = 8  # elements between rows of the results
COLUMN_PADDING: Final = (
    4  # and between columns, where these are stored first, if it is divisible
)
SIDES: Final = (16, 32, 64, 128)  # rows of a tile along their last dimension
# Of a part of the results of a block that persists: its columns, and elements between its rows.
# Little enough that the tiles of three more steps are beside those of 128 x 256 of 16 bits.
PART_COLUMNS: Final = GROUP_BLOCK
PART_PADDING: Final = 4


class RowLayout(NamedTuple):
    """The rows of a factor's tile. room: elements between them."""

    room: int
    is_swizzled: bool = False


class ClusterShape(NamedTuple):
    """Blocks of a cluster, along the rows and along the columns: those along one side share the
    factor of the other side."""

    rows: int
    columns: int

    @property
    def blocks(self) -> int:
        """How many there are."""
        return self.rows * self.columns


ONE_BLOCK: Final = ClusterShape(1, 1)


class TensorTile(NamedTuple):
    """rows, columns, depth: of a block's tile. row_warps, column_warps: that share the results; of
    a unit of several warps, how many such units of threads."""

    rows: int
    columns: int
    depth: int
    row_warps: int
    column_warps: int


@dataclass(frozen=True, slots=True)
class TensorTiling:
    """A product in such tiles; `plan` has the sides of the block.

    Rows are those of several dimensions, of which the instructions go along the last; a step has
    one iteration of each sum but `along`.
    """

    tile: TensorTile
    plan: Tiling
    unit: TensorUnit = MMA

    @property
    def along(self) -> Dim:
        """The sum that the instructions go along."""
        return along(self.plan.product)

    @property
    def threads(self) -> Mapping[str, int]:
        """Threads of a block, by axis, the fastest first."""
        t = self.tile
        axes = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
        counts = (self.unit.threads, t.row_warps, t.column_warps)
        return dict(zip(axes, counts, strict=True))

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return math.prod(self.threads.values()) // WARP

    @property
    def columns_first(self) -> bool:
        """Whether a block's results are stored by columns, each with its rows."""
        return has_columns_first(self.plan.product)

    @property
    def result_row(self) -> tuple[int, int]:
        """Elements of a block's results along their last dimension, and the room after these. With
        it the stores of a warp have few bank conflicts."""
        if not self.columns_first:
            return self.tile.columns, RESULT_PADDING
        size = self.plan.shares[self.plan.product.rows[-1]].size
        return size, max(COLUMN_PADDING * size // self.tile.rows, 1)

    def parts(self, persists: bool) -> int:
        """In how many parts of its columns a block's results are in shared memory, one after
        another: units of several warps leave too little room for all of them beside other tiles."""
        in_parts = persists and self.unit.threads > WARP
        return self.tile.columns // PART_COLUMNS if in_parts else 1

    def part_row(self, persists: bool) -> tuple[int, int]:
        """As `result_row`, of what is in shared memory at a time."""
        in_parts = persists and self.unit.threads > WARP
        return (PART_COLUMNS, PART_PADDING) if in_parts else self.result_row

    def result_steps(self, persists: bool) -> tuple[int, int]:
        """Elements between neighboring results of a column, and between those of a row."""
        size, room = self.part_row(persists)
        if not self.columns_first:
            return size + room, 1
        return 1, self.tile.rows // size * (size + room)

    @property
    def factor(self) -> int:
        """Elements of a factor along the sum in one instruction."""
        return self.unit.depth // self.plan.product.left.dtype.itemsize

    @property
    def mine(self) -> tuple[int, int]:
        """Tiles of units, down and across, of the threads that do these together."""
        t = self.tile
        rows, columns = t.rows // t.row_warps, t.columns // t.column_warps
        return rows // self.unit.rows, columns // self.unit.columns

    @property
    def units(self) -> int:
        """Units of tensor cores in a step of a block."""
        (down, across), tile = self.mine, self.tile
        teams = tile.row_warps * tile.column_warps
        return teams * down * across * (tile.depth // self.factor)

    @property
    def products(self) -> int:
        """Instructions of tensor cores in a step of a block."""
        return self.units * self.unit.instructions


def has_columns_first(product: Product) -> bool:
    """Whether neighbors along the last row dimension are the neighbors among the sums."""
    sides = [d.var for d in (*product.rows, *product.columns)]
    found = [i for i in product.reduction.outputs[0].index if i in sides]
    return found[-1] is product.rows[-1].var


def along(product: Product) -> Dim:
    """The sum over channels: that alone is an index of the left factor, the last of such; without
    one the last of all."""
    alone = [affine(i).terms for i in product.left.index]
    found = [d for d in product.sums if ((d.var, 1),) in alone]
    return (found or product.sums)[-1]


def tensor_tiling(
    product: Product, tile: TensorTile, unit: TensorUnit = MMA
) -> TensorTiling:
    """The product in these tiles."""
    (column,) = product.columns
    shares = {}
    by = warp_rows(product, tile, unit)
    for row, size in row_sides(product, tile).items():
        own = tile.row_warps if row is by else 1
        shares[row] = DimensionShare(size, own, "threadIdx.y")
    shares[column] = DimensionShare(tile.columns, tile.column_warps, "threadIdx.z")
    shares |= {d: DimensionShare(1, 1, "") for d in product.batch}
    depths = dict.fromkeys(product.sums, 1) | {along(product): tile.depth}
    return TensorTiling(tile, Tiling(product, shares, depths), unit)


def warp_rows(product: Product, tile: TensorTile, unit: TensorUnit) -> Dim | None:
    """The rows that the warps of a block share: the outermost dimension that has some for each.
    Without one, it has no such tiles: accumulators are dealt out along one dimension."""
    for row, size in row_sides(product, tile).items():
        if size // (unit.rows if row is product.rows[-1] else 1) >= tile.row_warps:
            return row
    return None


def row_sides(product: Product, tile: TensorTile) -> dict[Dim, int]:
    """How many of a tile's rows are along each dimension, outermost first: along the last one what
    needs the least padding, along the others what is left."""
    *outer, last = product.rows
    most = {d: 1 << (d.extent - 1).bit_length() for d in outer}
    least = tile.rows // math.prod(most.values())
    possible = [n for n in SIDES if least <= n <= tile.rows]
    size = min(possible, key=lambda n: (-(-last.extent // n) * n, -n))
    sides = {last: size}
    left = tile.rows // size
    for d in reversed(outer):
        sides[d] = min(left, most[d])
        left //= sides[d]
    return {d: sides[d] for d in product.rows}
