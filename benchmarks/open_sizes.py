"""One function for all sizes against one that is compiled for each: te, Halide and MDH.

    python -m benchmarks.open_sizes [--threads N] [--rounds N]

Interleaved calls of both in one process; the ratio is the median time of the fixed function over
that of the open one (1: equally fast, less: slower). Results are compared first.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click
import numpy as np

from benchmarks.harness import rounds_option, threads_option
from benchmarks.turns import by_turns, stopwatch
from tilewright import halide as hl
from tilewright import te as t
from tilewright.lang import mdh
from tilewright.lang.mdh import add, cc, float32, inp_view, md_hom, mul, out_view, pw

Made = tuple[Any, list[Any]]  # a function and the arrays that it is called on
SIZES = (64, 250, 509, 1024)


def _random(*shapes: tuple[int, ...]) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape, dtype=np.float32) for shape in shapes]


def _te_tensors(n: Any, m: Any, k: Any) -> tuple[Any, Any, Any]:
    a, b = t.placeholder((n, k), name="A"), t.placeholder((k, m), name="B")
    r = t.reduce_axis((0, k), name="k")
    c = t.compute((n, m), lambda i, j: t.sum(a[i, r] * b[r, j], axis=r), name="C")
    return a, b, c


def te_product(size: int | None, threads: int) -> Any:
    """A product in tiles of 4 by 32, written by hand; columns in vectors, rows on threads."""
    sizes = [t.var(x) for x in "nmk"] if size is None else [size] * 3
    tensors = _te_tensors(*sizes)
    c = tensors[-1]
    s = t.create_schedule(c.op)
    (i, j), (k,) = c.op.axis, c.op.reduce_axis
    io, ii = s[c].split(i, 4)
    jo, ji = s[c].split(j, 32)
    jv, jj = s[c].split(ji, 16)
    s[c].reorder(io, jo, k, ii, jv, jj)
    s[c].unroll(ii)
    s[c].unroll(jv)
    s[c].vectorize(jj)
    s[c].parallel(io)
    return t.build(s, list(tensors), threads=threads)


def te_map(size: int | None, threads: int) -> Any:
    """An elementwise function by the default schedule."""
    n, m = (t.var("n"), t.var("m")) if size is None else (size, size)
    x = t.placeholder((n, m), name="X")
    y = t.compute((n, m), lambda i, j: t.exp(x[i, j]) * 2.0, name="Y")
    return t.build(t.create_schedule(y.op), [x, y], auto=True, threads=threads)


@mdh.generic
def MatMul(T: Any, M: Any, N: Any, K: Any) -> Any:
    """A product."""
    return (
        out_view[T](C=[lambda i, j, k: (i, j)])
        @ md_hom[M, N, K](mul, (cc, cc, pw(add)))
        @ inp_view[T, T](A=[lambda i, j, k: (i, k)], B=[lambda i, j, k: (k, j)])
    )


def mdh_product(size: int | None, threads: int) -> Any:
    """A product by the default schedule."""
    sizes = () if size is None else (size,) * 3
    return mdh.build(MatMul[(float32, *sizes)], threads=threads)


def halide_blur(size: int | None, threads: int) -> Any:
    """Two passes of a blur, in tiles, as Halide's tutorial has it."""
    x, y, xi, yi = hl.vars("x y xi yi")
    image = hl.ImageParam(hl.Float(32), 2, "image")
    across, down = hl.Func("across"), hl.Func("down")
    across[x, y] = (image[x, y] + image[x + 1, y] + image[x + 2, y]) / 3.0
    down[x, y] = (across[x, y] + across[x, y + 1] + across[x, y + 2]) / 3.0
    down.tile(x, y, xi, yi, 64, 32).vectorize(xi, 8).parallel(y)
    across.compute_at(down, x).vectorize(x, 8)
    return down.compile_jit(None if size is None else [size, size], threads=threads)


CASES: dict[
    str, tuple[Callable[[int | None, int], Any], Callable[[int], list[Any]]]
] = {
    "te product": (te_product, lambda n: _random((n, n), (n, n), (n, n))),
    "te map": (te_map, lambda n: _random((n, n), (n, n))),
    "MDH product": (mdh_product, lambda n: _random((n, n), (n, n), (n, n))),
    "Halide blur": (halide_blur, lambda n: _random((n + 2, n + 2), (n, n))),
}


def ratio(
    functions: Sequence[Any], arrays: list[Any], rounds: int
) -> tuple[float, float]:
    """Microseconds of the fixed function, and the ratio of its time to the open one's.

    Raises AssertionError if their results differ.
    """
    results = []
    for f in functions:
        arrays[-1][...] = np.nan
        f(*arrays)
        results.append(arrays[-1].copy())
    np.testing.assert_allclose(results[0], results[1], rtol=1e-3, atol=1e-3)
    timed = {n: stopwatch(partial(f, *arrays)) for n, f in enumerate(functions)}
    fixed, opened = map(statistics.median, by_turns(timed, rounds).values())
    return fixed * 1e6, fixed / opened


@click.command()
@threads_option()
@rounds_option(41)
def main(threads: int, rounds: int) -> None:
    """The table: microseconds of the fixed function and the ratio, by size."""
    found: list[float] = []
    print(f"{'':<12}" + "".join(f"{n:>18}" for n in SIZES))
    for name, (make, inputs) in CASES.items():
        opened = make(None, threads)
        cells = []
        for size in SIZES:
            taken, part = ratio([make(size, threads), opened], inputs(size), rounds)
            found.append(part)
            cells.append(f"{taken:>10.1f}us {part:5.2f}")
        print(f"{name:<12}" + "".join(cells), flush=True)
    print(f"geometric mean {math.exp(statistics.fmean(map(math.log, found))):.2f}")


if __name__ == "__main__":
    main()
