"""Which tiles of products on tensor cores there are, and which are expected to be fastest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from tilewright.expr.nodes import Load
from tilewright.targets.cuda.cost import factor_strides
from tilewright.targets.cuda.group_intrinsics import (
    GROUP_BLOCK,
    GROUP_COLUMNS,
    GROUP_ROWS,
    TURNING,
    group_depth,
)
from tilewright.targets.cuda.machine import CudaMachine
from tilewright.targets.cuda.tensor_tiling import (
    TensorTile,
    TensorTiling,
    row_sides,
    tensor_tiling,
    warp_rows,
)
from tilewright.targets.cuda.tensor_units import GROUP_UNITS, MMA, TensorUnit
from tilewright.targets.cuda.tensor_waves import best_tensor_wave
from tilewright.targets.simt.products import Product

KEPT: Final = 32  # tiles that a tuner may try, the best ones
# Sides of a block's tile, and the warps along each.
SHAPES: Final = (
    (128, 128, 2, 4),
    (128, 128, 4, 2),
    (128, 64, 4, 2),
    (64, 128, 2, 4),
    (64, 64, 2, 2),
    (64, 32, 4, 1),
    (32, 64, 1, 4),
    (32, 32, 2, 1),
    (16, 64, 1, 2),
    (16, 32, 1, 1),
)
GROUP_SHAPES: Final = (
    (128, 256, 2, 1),
    (128, 128, 2, 1),
    (64, 256, 1, 2),
    (64, 256, 1, 1),
    (64, 128, 1, 1),
)
DEPTHS: Final = (32, 64, 128)  # bytes of a tile's rows along the sum


class UnitKind(NamedTuple):
    """One way to use tensor cores. name: of its sketch. key: of its choice of a tile. shapes: sides
    of a block's tile, and the teams along each. unit: what computes a product in a tile; None if
    nothing does."""

    name: str
    key: str
    shapes: tuple[tuple[int, int, int, int], ...]
    unit: Callable[[Product, TensorTile], TensorUnit | None]


def _warp_unit(product: Product, tile: TensorTile) -> TensorUnit | None:
    return MMA if warp_rows(product, tile, MMA) is not None else None


def _group_unit(product: Product, tile: TensorTile) -> TensorUnit | None:
    """The unit of four warps, for 64 neighbors along the last row dimension. Its factors have rows
    of 128 bytes in a tile: along the sum, or beside it, a block of 64 elements after another."""
    if tile.depth != group_depth(product.left.dtype):
        return None
    rows = row_sides(product, tile)[product.rows[-1]]
    if rows % GROUP_ROWS or warp_rows(product, tile, GROUP_UNITS[GROUP_BLOCK]) is None:
        return None
    t = tensor_tiling(product, tile, GROUP_UNITS[GROUP_BLOCK])
    turned = [is_turned(t, read) for read in (product.left, product.right)]
    if None in turned:
        return None
    columns = min(max(GROUP_COLUMNS), tile.columns // tile.column_warps)
    in_blocks = bool(turned[1]) and columns > GROUP_BLOCK
    return GROUP_UNITS[columns]._replace(in_blocks=in_blocks)


def is_turned(t: TensorTiling, read: Load) -> bool | None:
    """Whether rows of a factor's tile go across the sum; None if these have no 64 neighbors."""
    beside, along = factor_strides(t, read, 0)
    row = t.plan.box(read)[-1]
    depth = group_depth(read.dtype)
    if (beside, along, row) == (depth, 1, depth):
        return False
    turns = read.dtype.itemsize == TURNING and (beside, along) == (1, row)
    return True if turns and row % GROUP_BLOCK == 0 else None


WARPS: Final = UnitKind("tensor cores", "tensor_tile", SHAPES, _warp_unit)
GROUPS: Final = UnitKind("warp groups", "group_tile", GROUP_SHAPES, _group_unit)


@lru_cache(maxsize=256)
def tensor_tiles(
    product: Product, machine: CudaMachine, kind: UnitKind = WARPS
) -> tuple[TensorTile, ...]:
    """The tiles that fit the machine, those first that are expected to be fastest."""
    times = {}
    for tile in _possible(product, kind):
        t = tiling_of(product, tile, kind)
        _, time = best_tensor_wave(t, machine)
        if time is not None:
            times[tile] = time
    return tuple(sorted(times, key=lambda t: (times[t], t))[:KEPT])


def tiling_of(product: Product, tile: TensorTile, kind: UnitKind) -> TensorTiling:
    """The product in these tiles, which are possible ones of a kind."""
    unit = kind.unit(product, tile)
    assert unit is not None
    return tensor_tiling(product, tile, unit)


def _possible(product: Product, kind: UnitKind) -> Iterator[TensorTile]:
    size = product.left.dtype.itemsize
    for rows, columns, row_warps, column_warps in kind.shapes:
        for depth in DEPTHS:
            tile = TensorTile(rows, columns, depth // size, row_warps, column_warps)
            if kind.unit(product, tile) is not None:
                yield tile
