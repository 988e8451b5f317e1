"""Macro rules: strategies that combine rules which belong together."""

from __future__ import annotations

from tilewright.ir.strategy import Strategy
from tilewright.lift.strategies import at, rule, then


def tile_map_map(rows: int, columns: int) -> Strategy:
    """`xs | Map(lambda x: ys | Map(f x))` in tiles of rows by columns (Steuwer et al., 2016).

        xs | Split(rows) | Map(lambda X:
          ys | Split(columns) | Map(lambda Y: X | Map(lambda x: Y | Map(f x)) | Transpose)
          | Join | Transpose) | Join

    Where `ys` does not depend on x, and both lengths are divided.
    """
    inner = at((1, 0, 0), rule("interchange"))
    across = at((1, 0, 0, 1, 1), rule("split-join", m=columns))
    back = at((1, 0, 0, 1, 1, 1, 0, 0), rule("interchange"))
    return then(rule("split-join", m=rows), inner, across, back)


def register_block() -> Strategy:
    """`xs | Map(lambda x: ys | Map(lambda y: e(x, y) | Reduce(f, z) | g))` in one reduction.

    Its accumulator is the whole block of results, so that an element that is read serves a row or
    a column of it; `g` is applied to the results, `At(0)` say. In a tile of `tile_map_map` the
    accumulators are few enough for registers (Steuwer et al., 2016).
    """
    fission = rule("map-fission")
    exchange = rule("map-reduce")
    row = then(
        at((0, 0, 1), fission),
        at((0, 0, 1, 1), fission),
        at((0, 0, 1, 1), exchange),
    )
    return then(
        row,
        fission,
        at((1,), fission),
        at((1, 1), fission),
        at((1, 1), exchange),
    )


def reuse(size: int) -> Strategy:
    """`xs | Map(lambda x: ys | Map(f x))` with pieces of ys outside xs (introduce reuse).

        ys | Split(size) | Map(lambda Y: xs | Map(lambda x: Y | Map(f x))) | Transpose
        | Map(Join)

    A piece that is small enough for a cache, local memory or registers then serves all of xs.
    Where `ys` does not depend on x, and `size` divides its length.
    """
    pieces = at((0, 0, 1), rule("split-join", m=size))
    return then(pieces, rule("map-fission"), at((1,), rule("interchange")))


def partial_reduce(parts: int, stride: int) -> Strategy:
    """`xs | Reduce(f, z)` as partial results, each of elements `stride` apart.

        xs | Gather('stride', stride) | PartRed(f, z, parts) | Reduce(f, z)

    Neighbors then belong to different parts, so that threads that run side by side read side by
    side (Steuwer et al., 2017). Where f is associative and commutative and z neutral, and both
    numbers divide the length.
    """
    order = rule("partial-reduce-order", k=stride)
    return then(rule("partial-reduce", m=parts), order)


def tile_stencil(tile: int, step: int) -> Strategy:
    """`xs | Slide(size, step) | Map(f)` in overlapping tiles of the input (Hagedorn et al., 2018).

    tile: elements of the input in a tile; step: elements between the first ones of two tiles. They
    overlap by as much as two windows do.
    """
    return rule("map-slide-tiling", u=tile, v=step)


def tile_stencil_2d(tile: int, step: int) -> Strategy:
    """`Slide2D(size, step)` in square tiles that overlap; numbers as of `tile_stencil`."""
    return rule("slide-2d-tiling", u=tile, v=step)


def finish_tiling(size: int) -> Strategy:
    """`register_block`, with the reduction in steps of `size` elements (finish tiling).

        elements | Split(size) | Map(Reduce(f, z)) | Join | Reduce(f, z)

    for its reduction of blocks, so that what a step reads is a tile in all three dimensions. Where
    `f` is associative, `z` neutral, and `size` divides the length of the reduction.
    """
    steps = at((1, 1, 1), rule("reduce-split", m=size))
    return then(register_block(), steps)
