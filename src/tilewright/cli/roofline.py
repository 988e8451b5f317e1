"""What this machine can do at best, measured: NumPy's matrix product and copies.

In a process of its own, because BLAS reads the number of its threads once, when it is loaded.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass

from tilewright.base.errors import ExecutionError

_PROBE = """
import json, sys, time
from concurrent.futures import ThreadPoolExecutor
import numpy as np

def best(call, repeats):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)

threads = int(sys.argv[1])
n = 1536
a, b, c = (np.ones((n, n), np.float32) for _ in range(3))
product = best(lambda: np.matmul(a, b, out=c), 12)
size = 1 << 27
parts = [(np.ones(size // threads, np.uint8), np.empty(size // threads, np.uint8))
         for _ in range(threads)]
with ThreadPoolExecutor(threads) as pool:
    copy = best(lambda: list(pool.map(lambda p: np.copyto(p[1], p[0]), parts)), 8)
print(json.dumps({"gflops": 2e-9 * n**3 / product, "gbs": 2e-9 * size / copy}))
"""


@dataclass(frozen=True)
class Peaks:
    """float32 operations and bytes moved, in billions per second, all threads together."""

    gflops: float
    gbs: float


def measure(threads: int) -> Peaks:
    """The peaks on that many threads; takes about a second. Raises ExecutionError."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, str(threads)],
        env={**os.environ, **dict.fromkeys(names, str(threads))},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise ExecutionError(f"the machine's peaks could not be measured: {lines[-1]}")
    return Peaks(**json.loads(done.stdout))
