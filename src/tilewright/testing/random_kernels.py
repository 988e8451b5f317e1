"""Random kernels: up to three stages of affine accesses, paddings, reductions, scans, and a map.

All values are int32, which wraps around, so that every order of a reduction gives the same bits.
Extents are small, and equally often odd (1 included) and even.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tilewright.base import dtypes
from tilewright.compute.build import cast, map_, padded, reduce_
from tilewright.compute.nodes import PS, Computation
from tilewright.expr.nodes import Buffer, Expr, Max, Sub
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel

i32 = dtypes.int32
Made = tuple[Computation, Buffer]


def random_kernel(r: random.Random) -> Kernel:
    """The plain nests of `random_computations`."""
    return plain(random_computations(r))


def plain(computations: Sequence[Computation]) -> Kernel:
    """The plain nests of a sequence of Computations; only the last result is returned."""
    made = {o.tensor for c in computations for o in c.outputs}
    read: dict[Buffer, None] = {}
    for c in computations:
        read |= dict.fromkeys(b for b in c.inputs if b not in made)
    outputs = [o.tensor for o in computations[-1].outputs]
    return lower("p", computations, [*read, *outputs], outputs)


def random_computations(r: random.Random) -> list[Computation]:
    """Two to four Computations in a row, each over the result of the one before."""
    x = Buffer("X", (r.randint(1, 7), r.randint(2, 9)), i32)
    computations: list[Computation] = []
    source = x
    for n in range(r.randint(1, 3)):
        c, source = r.choice(STAGES)(r, n, source)
        computations.append(c)
    h, w = source.shape
    y = Buffer("Y", (h, w), i32)
    b = Buffer("B", (w,), i32)

    def last(i: Expr, j: Expr) -> Expr:
        return Max(source[i, j], Sub(b[j], source[i, (w - 1) - j]))

    computations.append(map_("last", y, last))
    return computations


def _map(
    n: int,
    source: Buffer,
    f: Callable[[Expr, Expr], Expr],
) -> Made:
    out = Buffer(f"t{n}", source.shape, i32)
    return map_(f"s{n}", out, f), out


def _mirrored(
    r: random.Random,
    n: int,
    source: Buffer,
) -> Made:
    last = source.shape[0] - 1
    return _map(n, source, lambda i, j: source[i, j] * 3 + source[last - i, j])


def _scaled(
    r: random.Random,
    n: int,
    source: Buffer,
) -> Made:
    return _map(n, source, lambda i, j: source[i, j] * 5 - 2)


def _transposed(
    r: random.Random,
    n: int,
    source: Buffer,
) -> Made:
    out = Buffer(f"t{n}", source.shape[::-1], i32)
    return map_(f"s{n}", out, lambda i, j: source[j, i] + 1), out


def _product(
    r: random.Random,
    n: int,
    source: Buffer,
) -> Made:
    h, w = source.shape
    out = Buffer(f"t{n}", source.shape, i32)

    def f(
        i: Expr,
        j: Expr,
        k: Expr,
    ) -> Expr:
        return source[i, k] * source[k % h, j]

    return reduce_(f"s{n}", out, (w,), "add", f), out


def _window(
    r: random.Random,
    n: int,
    source: Buffer,
) -> Made:
    out = Buffer(f"t{n}", source.shape, i32)

    def f(
        i: Expr,
        j: Expr,
        k: Expr,
    ) -> Expr:
        return padded(source, (i, j + k - 1), -(2**31))

    return reduce_(f"s{n}", out, (3,), "max", f), out


def _row_sums(
    r: random.Random,
    n: int,
    source: Buffer,
) -> Made:
    h, w = source.shape
    out = Buffer(f"r{n}", (h, 1), i32)
    c = reduce_(
        f"s{n}",
        out,
        (w,),
        "add",
        lambda i, j: source[i, j],
        extents=(h,),
        index=lambda i: (i, 0),
    )
    return c, out


def _prefix_sums(
    r: random.Random,
    n: int,
    source: Buffer,
) -> Made:
    h, w = source.shape
    out = Buffer(f"t{n}", source.shape, i32)
    c = reduce_(
        f"s{n}",
        out,
        (w,),
        "add",
        lambda i, j: source[i, j],
        extents=(h,),
        combine=PS,
        index=lambda i, j: (i, j),
    )
    return c, out


def _convolution(
    r: random.Random,
    n: int,
    source: Buffer,
) -> Made:
    h, w = source.shape
    stride = r.randint(1, 2)
    size = r.randint(1, 3)
    dilation = r.randint(1, 2)
    out = Buffer(f"t{n}", (h, (w + 1) // stride), i32)

    def f(
        i: Expr,
        j: Expr,
        u: Expr,
        v: Expr,
    ) -> Expr:
        at = (i + u * dilation - 1, j * stride + v - 1)
        weight = cast(u + v, i32) + 1
        return padded(source, at, 0) * weight

    return reduce_(f"s{n}", out, (size, 2), "add", f), out


def _pooling(
    r: random.Random,
    n: int,
    source: Buffer,
) -> Made:
    h, w = source.shape
    stride = r.randint(1, 2)
    size = r.randint(1, 3)
    out = Buffer(f"t{n}", ((h + 1) // stride, w), i32)

    def f(
        i: Expr,
        j: Expr,
        k: Expr,
    ) -> Expr:
        return padded(source, (i * stride + k - 1, j), 0)

    return reduce_(f"s{n}", out, (size,), "add", f), out


STAGES: tuple[Callable[[random.Random, int, Buffer], Made], ...] = (
    _mirrored,
    _scaled,
    _transposed,
    _product,
    _window,
    _row_sums,
    _prefix_sums,
    _convolution,
    _pooling,
)
