"""A matrix product scheduled by hand, beside the schedule that the compiler finds by itself.

python examples/schedule_by_hand.py [n]
"""

import sys

import numpy as np

import tilewright as tw
from tilewright.base.dtypes import float32
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.operators import Buffer, reduce_
from tilewright.schedule import Schedule
from tilewright.targets.registry import target


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    a, b, c = (Buffer(name, (n, n), float32) for name in "abc")
    product = reduce_("mm", c, (n,), "add", lambda i, j, k: a[i, k] * b[k, j])
    plain = lower("mm", [product], params=[a, b, c], outputs=[c])

    s = Schedule(plain)
    rows, row = s.split("mm.i", 4)
    columns, column = s.split("mm.j", 32)
    s.reorder(columns, rows, row, column)
    s.parallel(columns)
    tile = s.cache_write("c", rows, scope="register")
    s.decompose_reduction(tile, row)
    s.reorder("mm.k", row, column)
    for loop in (f"{row}.init", row, f"{tile}.w0"):
        s.unroll(loop)
    for loop in (f"{column}.init", column, f"{tile}.w1"):
        block, lanes = s.split(loop, 8)
        s.unroll(block)
        s.vectorize(lanes)
    print(s.trace, "\n", s.kernel, sep="\n")

    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((n, n), dtype=np.float32) for _ in range(2))

    def measure(title: str, kernel: Kernel) -> None:
        exe = tw.compile(kernel)
        np.testing.assert_allclose(exe(x, y), x @ y, rtol=1e-3, atol=1e-3 * n**0.5)
        row = exe.profile(x, y).rows[0]
        print(f"{title:<12}{row.seconds * 1e6:>10.0f} us{row.gflops:>8.1f} GFLOP/s")

    print()
    measure("plain", plain)
    measure("by hand", s.kernel)
    measure(
        "by default", target().default_schedule(plain, [product], constants=()).kernel
    )


if __name__ == "__main__":
    main()
