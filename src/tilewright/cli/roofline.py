"""The peak performance of this machine, measured with compiled models.

Arithmetic: a matrix product on one thread, multiplied by the number of threads. Memory: a rectifier
over more data than the caches hold, on all threads.

Other work only makes a measurement slower. So of several short turns the best counts, and the best
of all runs on this machine is kept in the cache: it is not measured again once turns agree.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from math import isfinite
from statistics import median
from typing import Any, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import float32
from tilewright.base.store import FileStore, default_store
from tilewright.cli.doctor import caches
from tilewright.runtime.machine import processor_name
from tilewright.runtime.profile import least_share

_PRODUCT: Final = (256, 512, 1024)
_COPY_ELEMENTS: Final = 1 << 25
TURNS: Final = 6  # of each measurement, in alternation: other work comes and goes
_SECONDS: Final = 0.12  # of a turn
AGREEING: Final = 1.1  # times the least that the median turn takes on a quiet machine
NEAR: Final = 0.8  # of the roofline: what is nearer needs no explanation
WORTH_SAYING: Final = 0.03  # of the time of a model
BUSY: Final = 1.0  # load of the machine from which other work is expected


@dataclass(frozen=True)
class MachinePeaks:
    """float32 operations and bytes moved, in billions per second, all threads together.

    cache: bytes of the largest cache; data that fit there are not bound by memory bandwidth.
    disturbed: other work was in the way whenever this was measured: the peaks may be higher, and
    shares of them lower.
    """

    gflops: float
    gbs: float
    cache: int = 0
    disturbed: bool = False

    def of(self, f: Mapping[str, Any]) -> float | None:
        """The share of the kernel of an event `tune-progress`, or of a result of tuning."""
        if not isfinite(f["seconds"]):
            return None
        return self.share(f["operations"], f["bytes_moved"], f["seconds"])

    def is_far(self, f: Mapping[str, Any], part: float) -> bool:
        """Whether to say what bounds a kernel that takes this part (0 to 1) of the model's time."""
        share = self.of(f)
        return part >= WORTH_SAYING and share is not None and share < NEAR

    @property
    def note(self) -> str:
        """What to say about them; empty if nothing."""
        if not self.disturbed:
            return ""
        return (
            "the machine's peaks were measured beside other work, and may be higher: "
            "shares of the roofline are then lower"
        )

    def merged(self, other: MachinePeaks) -> MachinePeaks:
        """The higher ones; disturbed only if both are."""
        return MachinePeaks(
            max(self.gflops, other.gflops),
            max(self.gbs, other.gbs),
            self.cache,
            self.disturbed and other.disturbed,
        )

    def share(self, operations: int, moved: int, seconds: float) -> float | None:
        """The roofline's share of a kernel that runs alone, again and again; None if not known."""
        gbs = self.gbs if moved > self.cache else None
        return least_share(operations, moved, seconds, (self.gflops, gbs))


def measure(threads: int) -> MachinePeaks:
    """The peaks on that many threads: those in the cache, measured (two seconds) if they were never
    undisturbed. Raises TilewrightError."""
    store, key = default_store(), _key(threads)
    known = None if store is None else _read(store, key)
    if known is not None and not known.disturbed:
        return known
    found = _measured(threads)
    if known is not None:
        found = found.merged(known)
    if store is not None:
        kept = (found.gflops, found.gbs, found.disturbed)
        store.put(key, json.dumps(kept).encode())
    return found


def _key(threads: int) -> str:
    what = _PRODUCT, _COPY_ELEMENTS, threads
    machine = f"{what} {processor_name()} {sorted(caches().items())}"
    return f"peaks-{hashlib.sha256(machine.encode()).hexdigest()[:32]}"


def _read(store: FileStore, key: str) -> MachinePeaks | None:
    found = store.get(key)
    if found is None:
        return None
    gflops, gbs, disturbed = json.loads(found)
    return MachinePeaks(gflops, gbs, _largest_cache(), disturbed)


def _largest_cache() -> int:
    return max(caches().values(), default=0)


def _measured(threads: int) -> MachinePeaks:
    load = os.getloadavg()[0]
    rows, inner, columns = _PRODUCT
    flops = 2 * rows * inner * columns
    moved = 2 * float32.itemsize * _COPY_ELEMENTS
    product = _turn(_product(), 1, (rows, inner))
    copy = _turn(_copy(), threads, (_COPY_ELEMENTS,))
    turns = [(product(), copy()) for _ in range(TURNS)]
    products, copies = zip(*turns, strict=True)
    return MachinePeaks(
        gflops=1e-9 * threads * flops / min(products),
        gbs=1e-9 * moved / min(copies),
        cache=_largest_cache(),
        disturbed=load > BUSY
        or any(median(t) > AGREEING * min(t) for t in (products, copies)),
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


def _turn(model: bytes, threads: int, shape: tuple[int, ...]) -> Callable[[], float]:
    """A function of the fewest seconds of one call in one turn."""
    from tilewright.driver import compile

    exe = compile(model, threads=threads)
    x = np.full(shape, 0.25, np.float32)
    out = exe(x)

    def turn() -> float:
        times: list[float] = []
        until = time.perf_counter() + _SECONDS
        while len(times) < 3 or time.perf_counter() < until:
            start = time.perf_counter()
            exe(x, out=out)
            times.append(time.perf_counter() - start)
        return min(times)

    return turn
