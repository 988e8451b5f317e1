"""How the results of a product are distributed: a tile per block, and a part of it per thread.

    tile = (rows, columns, depth, row threads, column threads)

A thread has every `threads`-th row and column of its block's tile: neighbors read and write
neighboring elements at each step, and the threads of a warp read a row's element together. If a
side has several dimensions, the inner ones fill the tile first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from tilewright.base.dataclass import dataclass
from tilewright.compute.nodes import Dim
from tilewright.expr.affine import affine
from tilewright.expr.nodes import Expr, Load
from tilewright.targets.simt.products import Product


class SimtTile(NamedTuple):
    """rows, columns, depth: of a block's tile. row_threads, column_threads: that share it."""

    rows: int
    columns: int
    depth: int
    row_threads: int
    column_threads: int


class DimensionShare(NamedTuple):
    """One dimension in a block: its iterations, and the threads that they are dealt to cyclically.

    axis: the axis of these threads; empty if each thread has all iterations.
    """

    size: int
    threads: int
    axis: str

    @property
    def each(self) -> int:
        """Iterations of a thread."""
        return self.size // self.threads


class LaunchShare(NamedTuple):
    """The part of a product that one launch does: its blocks, and the steps of each."""

    blocks: int
    steps: int


@dataclass(frozen=True, slots=True)
class Tiling:
    """The share of each dimension of the results, and the steps of each sum at a time.

    share: what one launch does; None for all of the product.
    """

    product: Product
    shares: Mapping[Dim, DimensionShare]
    depths: Mapping[Dim, int]
    share: LaunchShare | None = None

    @property
    def threads(self) -> Mapping[str, int]:
        """Threads of a block, by axis, the fastest first."""
        found = {s.axis: s.threads for s in self.shares.values() if s.axis}
        return {axis: found[axis] for axis in AXES if axis in found}

    @property
    def block_threads(self) -> int:
        """Threads of a block in total."""
        return math.prod(self.threads.values())

    @property
    def sizes(self) -> dict[Dim, int]:
        """The iterations of each dimension in one step of a block."""
        return {d: s.size for d, s in self.shares.items()} | dict(self.depths)

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        if self.share is not None:
            return self.share.blocks
        return math.prod(-(-d.extent // s.size) for d, s in self.shares.items())

    @property
    def steps(self) -> int:
        """Successive tiles of a block along the reduction."""
        if self.share is not None:
            return self.share.steps
        return math.prod(-(-d.extent // n) for d, n in self.depths.items())

    @property
    def depth(self) -> int:
        """Products for each result in a step."""
        return math.prod(self.depths.values())

    def each(self, dims: Sequence[Dim]) -> int:
        """Elements of a thread along some dimensions."""
        return math.prod(self.shares[d].each for d in dims if d in self.shares)

    def box(self, read: Load) -> tuple[int, ...]:
        """The elements along each dimension of an operand that one step of a block reads."""
        sizes: dict[Expr, int] = {d.var: n for d, n in self.sizes.items()}
        return tuple(
            1 + sum(abs(c) * (sizes.get(v, 1) - 1) for v, c in affine(i).terms)
            for i in read.index
        )


AXES = ("threadIdx.x", "threadIdx.y", "threadIdx.z")


def tiling(product: Product, tile: SimtTile) -> Tiling:
    """The product in tiles; sizes are powers of two, or a dimension that is smaller as a whole."""
    free = ["threadIdx.z"]
    shares = dict(_shared(product.columns, tile.columns, tile.column_threads, 0, free))
    shares |= dict(_shared(product.rows, tile.rows, tile.row_threads, 1, free))
    shares |= {d: DimensionShare(1, 1, "") for d in product.batch}
    depths = {}
    left = tile.depth
    for d in reversed(product.sums):
        whole = _is_shifted(d, product)
        depths[d] = _fitting(d.extent, left, 1 if whole else left // 2 + 1)
        left //= depths[d]
    return Tiling(product, shares, depths)


def _shared(
    dims: Sequence[Dim], size: int, threads: int, first: int, free: list[str]
) -> Iterator[tuple[Dim, DimensionShare]]:
    """The innermost dimension has its own axis; one further dimension gets the remaining axis."""
    axis = AXES[first]
    for d in reversed(dims):
        own = min(size, 1 << (d.extent - 1).bit_length())
        mine = min(threads, own) if axis else 1
        yield d, DimensionShare(own, mine, axis if mine > 1 else "")
        size, threads = size // own, threads // mine
        if mine > 1:
            axis = ""
        if not axis and threads > 1 and free:
            axis = free.pop()


def _is_shifted(d: Dim, product: Product) -> bool:
    """Whether an operand is read at a sum of this dimension and others, as a window's places are: a
    step beyond the window then cannot be told by an index, and so not be filled up with zeros."""
    reads = (affine(i) for x in (product.left, product.right) for i in x.index)
    return any(len(i.terms) > 1 and i.coefficient(d.var) for i in reads)


def _fitting(extent: int, most: int, least: int) -> int:
    """Steps of a sum: all of them, else a divisor of at least `least`, else `most`."""
    most = max(most, 1)
    if extent <= most:
        return extent
    return next((n for n in range(most, least - 1, -1) if extent % n == 0), most)
