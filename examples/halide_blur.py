"""Five schedules of Halide's first example, a 3x3 blur, beside the `halide` package's own.

python examples/halide_blur.py [width height]

The same lines define and schedule the blur for both (`pip install halide` for the second column).
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from statistics import median
from types import ModuleType
from typing import Any

import numpy as np

from tilewright import halide as hl
from tilewright.expr.nodes import Buffer, FloorDiv, Load
from tilewright.ir.node import postorder
from tilewright.loops.nodes import For, Kernel, Stmt, Store

THREADS = len(os.sched_getaffinity(0))
LANES = 32
CACHE = 1 << 20
ROUNDS = 31


def blur_3x3(m: ModuleType) -> tuple[Any, Any, Any]:
    """The algorithm, in the words of the module `m`: input, horizontal blur, result."""
    x, y = m.Var("x"), m.Var("y")
    image = m.ImageParam(m.UInt(16), 2, "input")
    blur_x, blur_y = m.Func("blur_x"), m.Func("blur_y")
    blur_x[x, y] = (image[x - 1, y] + image[x, y] + image[x + 1, y]) // 3
    blur_y[x, y] = (blur_x[x, y - 1] + blur_x[x, y] + blur_x[x, y + 1]) // 3
    return image, blur_x, blur_y


def root(blur_x: Any, blur_y: Any, x: Any, y: Any, xi: Any, yi: Any) -> None:
    blur_y.vectorize(x, LANES)
    blur_x.compute_root().vectorize(x, LANES)


def inline(blur_x: Any, blur_y: Any, x: Any, y: Any, xi: Any, yi: Any) -> None:
    blur_y.vectorize(x, LANES)


def tiled(blur_x: Any, blur_y: Any, x: Any, y: Any, xi: Any, yi: Any) -> None:
    blur_y.tile(x, y, xi, yi, 256, 32).vectorize(xi, LANES)
    blur_x.compute_at(blur_y, x).vectorize(x, LANES)


def sliding_window(blur_x: Any, blur_y: Any, x: Any, y: Any, xi: Any, yi: Any) -> None:
    blur_y.vectorize(x, LANES)
    blur_x.store_root().compute_at(blur_y, y).vectorize(x, LANES)


def tiled_parallel(blur_x: Any, blur_y: Any, x: Any, y: Any, xi: Any, yi: Any) -> None:
    blur_y.tile(x, y, xi, yi, 512, 64).vectorize(xi, LANES).parallel(y)
    blur_x.compute_at(blur_y, x).vectorize(x, LANES)


SCHEDULES: tuple[Callable[..., None], ...] = (
    root,
    inline,
    tiled,
    sliding_window,
    tiled_parallel,
)


def scheduled(
    m: ModuleType, source: np.ndarray, schedule: Callable[..., None]
) -> tuple[Any, Any]:
    """The blur of `source` under a schedule, and its input, which must stay alive."""
    image, blur_x, blur_y = blur_3x3(m)
    schedule(blur_x, blur_y, *(m.Var(name) for name in ("x", "y", "xi", "yi")))
    buffer = m.Buffer(source)
    buffer.set_min([-1, -1])
    image.set(buffer)
    return blur_y, (image, buffer)


def ours(
    source: np.ndarray, out: np.ndarray, schedule: Callable[..., None]
) -> tuple[Any, Kernel]:
    """A call that fills `out`, and the kernel behind it."""
    blur, _ = scheduled(hl, source, schedule)
    function = blur.compile_jit(out.shape[::-1], threads=THREADS)
    return lambda: function(source, out), function.kernel


def theirs(source: np.ndarray, out: np.ndarray, schedule: Callable[..., None]) -> Any:
    """The same call of the `halide` package; None where it is not installed."""
    os.environ["HL_NUM_THREADS"] = str(THREADS)
    try:
        import halide
    except ImportError:
        return None
    blur, alive = scheduled(halide, source, schedule)
    blur.compile_jit()
    result = halide.Buffer(out)
    return lambda: (blur.realize(result), alive)


def stores(s: Stmt, times: int = 1) -> Iterator[tuple[Store, int]]:
    """Every store of a program and how often it is executed."""
    if isinstance(s, Store):
        yield s, times
    for part in s.children():
        if isinstance(part, Stmt):
            yield from stores(
                part, times * (s.trips or 1) if isinstance(s, For) else times
            )


def work(kernel: Kernel) -> int:
    """How often one of the two sums is computed: each ends in a division."""
    counts = (
        times * sum(isinstance(e, FloorDiv) for e in postorder(s.value))
        for s, times in stores(kernel.body)
    )
    return sum(counts)


def traffic(kernel: Kernel) -> int:
    """Bytes that each nest reads and writes of the buffers too large for a cache.

    Within a nest an element is in the cache when it is used again.
    """
    moved = 0
    for nest in nests(kernel.body):
        accesses: Counter[tuple[Buffer, str]] = Counter()
        for s, times in stores(nest):
            accesses[s.buffer, "write"] += times
            for e in postorder(s.value):
                if isinstance(e, Load):
                    accesses[e.buffer, "read"] += times
        for (b, _), count in accesses.items():
            if b.size * b.dtype.itemsize > CACHE:
                moved += min(count, b.size) * b.dtype.itemsize
    return moved


def nests(s: Stmt) -> Iterator[Stmt]:
    """The outermost loops of a program."""
    if isinstance(s, For):
        yield s
    else:
        for part in s.children():
            if isinstance(part, Stmt):
                yield from nests(part)


def interleaved(calls: list[Callable[[], object]]) -> list[float]:
    """Median seconds of each call, taken in turns."""
    times: list[list[float]] = [[] for _ in calls]
    for n in range(ROUNDS):
        order = list(range(len(calls)))
        for i in order if n % 2 else reversed(order):
            start = time.perf_counter()
            calls[i]()
            times[i].append(time.perf_counter() - start)
    return [median(t) for t in times]


def main() -> None:
    width, height = map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (4096, 2160)
    rng = np.random.default_rng(0)
    source = rng.integers(0, 20000, (height + 2, width + 2)).astype(np.uint16)
    across = (source[:, :-2] + source[:, 1:-1] + source[:, 2:]) // 3
    want = (across[:-2] + across[1:-1] + across[2:]) // 3
    least = width * height + width * (height + 2)

    print(
        f"blur_3x3 of uint16, {width}x{height}, {THREADS} threads where it is parallel"
    )
    print(f"{'schedule':15} {'ms':>6} {'halide':>7} {'MB moved':>9} {'more work':>10}")
    for schedule in SCHEDULES:
        # One output for both: where an array lies decides as much as the code that fills it.
        out = np.zeros((height, width), np.uint16)
        call, kernel = ours(source, out, schedule)
        calls = [c for c in (call, theirs(source, out, schedule)) if c is not None]
        for c in calls:
            out[:] = 0
            c()
            assert (out == want).all()
        seconds = interleaved(calls)
        beside = f"{seconds[1] * 1e3:7.2f}" if len(calls) > 1 else "      -"
        extra = work(kernel) / least - 1
        moved = traffic(kernel) / 1e6
        name = schedule.__name__
        print(f"{name:15} {seconds[0] * 1e3:6.2f} {beside} {moved:9.1f} {extra:10.1%}")


if __name__ == "__main__":
    main()
