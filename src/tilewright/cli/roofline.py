"""The peak performance of this machine, measured with compiled models.

Arithmetic: a matrix product on one thread, multiplied by the number of threads. Memory: a rectifier
over more data than the caches hold, on all threads.
"""

from __future__ import annotations

import time
from typing import Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import float32
from tilewright.cli.doctor import caches
from tilewright.runtime.profile import least_share

_PRODUCT: Final = (512, 1024, 1024)
_COPY_ELEMENTS: Final = 1 << 25
_SECONDS: Final = 0.5


@dataclass(frozen=True)
class MachinePeaks:
    """float32 operations and bytes moved, in billions per second, all threads together.

    cache: bytes of the largest cache; data that fit there are not bound by memory bandwidth.
    """

    gflops: float
    gbs: float
    cache: int = 0

    def share(self, operations: int, moved: int, seconds: float) -> float | None:
        """The roofline's share of a kernel that runs alone, again and again; None if not known."""
        gbs = self.gbs if moved > self.cache else None
        return least_share(operations, moved, seconds, (self.gflops, gbs))


def measure(threads: int) -> MachinePeaks:
    """Measure the peaks on that many threads; takes about two seconds. Raises TilewrightError."""
    rows, inner, columns = _PRODUCT
    flops = 2 * rows * inner * columns
    moved = 2 * float32.itemsize * _COPY_ELEMENTS
    return MachinePeaks(
        gflops=1e-9 * threads * flops / _best(_product(), 1, (rows, inner)),
        gbs=1e-9 * moved / _best(_copy(), threads, (_COPY_ELEMENTS,)),
        cache=max(caches().values(), default=0),
    )


def _product() -> bytes:
    from tilewright.frontends.onnx.author import Author

    rows, inner, columns = _PRODUCT
    author = Author("product")
    x = author.input("x", float32, (rows, inner))
    weight = author.weight("w", np.full((inner, columns), 0.5, np.float32))
    author.output(author.node("MatMul", [x, weight], "y"), float32, (rows, columns))
    return author.model()


def _copy() -> bytes:
    from tilewright.frontends.onnx.author import Author

    author = Author("copy")
    x = author.input("x", float32, (_COPY_ELEMENTS,))
    author.output(author.node("Relu", [x], "y"), float32, (_COPY_ELEMENTS,))
    return author.model()


def _best(model: bytes, threads: int, shape: tuple[int, ...]) -> float:
    """The fewest seconds of one call."""
    from tilewright.driver import compile

    exe = compile(model, threads=threads)
    x = np.full(shape, 0.25, np.float32)
    out = exe(x)
    times: list[float] = []
    until = time.perf_counter() + _SECONDS
    while len(times) < 3 or time.perf_counter() < until:
        start = time.perf_counter()
        exe(x, out=out)
        times.append(time.perf_counter() - start)
    return min(times)
