"""One matrix product, step by step from three loops to the speed of a vendor's library.

python examples/te_matmul.py [n [threads]]        n: a multiple of 64

What is computed never changes: only what `s` says about how. After each step the loops and the
measured speed are printed; the last step is timed beside NumPy (its BLAS) and, if it is installed,
PyTorch, in turns.
"""

# ruff: noqa: E402, RUF059 (the number of threads is fixed first; all loops get their names)
import os
import sys

n = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
threads = int(sys.argv[2]) if len(sys.argv) > 2 else 1
for library in ("OPENBLAS", "MKL", "OMP"):
    os.environ[f"{library}_NUM_THREADS"] = str(threads)

from collections.abc import Callable
from importlib.util import find_spec
from statistics import median
from time import perf_counter, sleep

import numpy as np

from tilewright import te as t
from tilewright.targets.registry import target

WIDE = "avx512f" in target().requirements["features"]
PAUSE = 0.1 if threads > 1 else 0.0  # seconds
LANES, VECTORS, ROWS = (
    (16, 4, 6) if WIDE else (8, 2, 6)
)  # a tile of C that fits the registers
WIDTH = LANES * VECTORS

A = t.placeholder((n, n))
B = t.placeholder((n, n))
k = t.reduce_axis((0, n))
C = t.compute((n, n), lambda y, x: t.sum(A[y, k] * B[k, x], axis=k))

# The same product, reading B through a copy in the order in which the tiles will read it.
P = t.compute((n // WIDTH, n, WIDTH), lambda panel, k, x: B[k, panel * WIDTH + x])
D = t.compute((n, n), lambda y, x: t.sum(A[y, k] * P[x // WIDTH, k, x % WIDTH], axis=k))


def naive() -> t.Schedule:
    """Three loops, the sum innermost: B is read down its columns."""
    return t.create_schedule(C.op)


def tiled() -> t.Schedule:
    """Tiles of all three dimensions, so that what is read stays in the caches."""
    s = t.create_schedule(C.op)
    y, x = s[C].op.axis
    yo, xo, ko, yi, xi, ki = s[C].tile(y, x, k, 32, 64, 64)
    return s


def vectorized() -> t.Schedule:
    """The columns innermost, as vectors: B and C are read along their rows."""
    s = t.create_schedule(C.op)
    y, x = s[C].op.axis
    yo, xo, ko, yi, xi, ki = s[C].tile(y, x, k, 32, 64, 64)
    s[C].reorder(yo, xo, ko, yi, ki, xi)
    lane = s[C].split(xi, LANES)[1]
    s[C].vectorize(lane)
    return s


def in_registers(product: t.Tensor) -> t.Schedule:
    """A tile of the product in registers, and the sum around it."""
    s = t.create_schedule(product.op)
    CC = s.cache_write(product, "register")
    y, x = s[product].op.axis
    yo, yi = s[product].split(y, ROWS, tail="overlap")
    xo, xi = s[product].split(x, WIDTH)
    s[product].reorder(xo, yo, yi, xi)
    s[CC].compute_at(s[product], yo)
    cy, cx = s[CC].op.axis
    s[CC].reorder(k, cy, cx)
    for stage, rows, columns in ((s[CC], cy, cx), (s[product], yi, xi)):
        vectors, lane = stage.split(columns, LANES)
        stage.unroll(rows)
        stage.unroll(vectors)
        stage.vectorize(lane)
    return s


def registers() -> t.Schedule:
    """A tile of C held in registers while the sum runs: each value read is used often."""
    return in_registers(C)


def packed() -> t.Schedule:
    """And B in the order in which the tiles read it: no cache line, no page is read in part."""
    s = in_registers(D)
    s[P].vectorize(s[P].split(s[P].op.axis[2], LANES)[1])
    return s


def parallel() -> t.Schedule:
    """And the panels of columns shared out to the threads."""
    s = packed()
    s[D].parallel(s[D].leaves[0])
    s[P].parallel(s[P].op.axis[0])
    return s


rng = np.random.default_rng(0)
a, b = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))
c = np.empty((n, n), np.float32)


def seconds(run: Callable[[], object], least: float = 0.1) -> list[float]:
    """Times of runs, as many as take `least` seconds together."""
    times: list[float] = []
    while sum(times) < least:
        start = perf_counter()
        run()
        times.append(perf_counter() - start)
    return times


def rate(times: list[float]) -> float:
    return 2 * n**3 / median(times) / 1e9


def step(schedule: Callable[[], t.Schedule], result: t.Tensor) -> Callable[[], object]:
    """Build, check, show and time one step."""
    s = schedule()
    f = t.build(s, [A, B, result], threads=threads)
    print(f"\n# {schedule.__name__}: {schedule.__doc__}\n{s}")
    c.fill(0)
    times = seconds(lambda: f(a, b, c))
    np.testing.assert_allclose(c, a @ b, rtol=1e-3, atol=1e-3 * n**0.5)
    print(f"# {rate(times):.1f} GFLOP/s")
    return lambda: f(a, b, c)


if n <= 1024:  # seconds to a minute each where n is larger
    step(naive, C)
    step(tiled, C)
step(vectorized, C)
step(registers, C)
step(packed, D)
best = step(parallel, D)

sides: dict[str, Callable[[], object]] = {
    "te": best,
    "NumPy": lambda: np.matmul(a, b, out=c),
}
if find_spec("torch"):
    import torch

    torch.set_num_threads(threads)
    x, y, z = map(torch.from_numpy, (a, b, c))
    sides["PyTorch"] = lambda: torch.mm(x, y, out=z)
times: dict[str, list[float]] = {side: [] for side in sides}
for _ in range(15):
    for side, run in sides.items():
        # The threads of the library before, which wait in loops, fall asleep first.
        sleep(PAUSE)
        run()
        times[side] += seconds(run, 1e-9)
print(f"\n{n} x {n} x {n}, {threads} thread(s), in turns:")
for side, measured in times.items():
    print(f"{side:<8}{rate(measured):>8.1f} GFLOP/s")
