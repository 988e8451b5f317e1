"""Speed of the rewrite engine: 100,000 distinct nodes of index arithmetic to normal form.

    python -m benchmarks.rewrite [--rounds N]

The program: unrolled index expressions of tiled loops (add, sub, mul, div, mod, min, max, compare,
select), as a schedule leaves them. Prints the best of N rounds, each in a fresh memo.
"""

from __future__ import annotations

import argparse
import gc
import time

from tilewright.base import dtypes
from tilewright.base.events import record
from tilewright.expr.nodes import Buffer, Expr, Max, Min, Select, Var, const, var
from tilewright.expr.rules import ALGEBRA
from tilewright.expr.simplify import simplify
from tilewright.ir.node import postorder
from tilewright.ir.rewrite import normalize, tracing


def program(nodes: int) -> tuple[list[Expr], int]:
    """Index expressions with at least `nodes` distinct nodes together, and their exact number."""
    i, j, k, f = (var(name) for name in "ijkf")
    source = Buffer("A", (1 << 20,), dtypes.float32)
    seen: set[object] = set()
    roots: list[Expr] = []
    n = 0
    while len(seen) < nodes:
        u, v = n % 16, n // 16
        row = (i * 64 + u) * 4 + (v - v % 4)
        flat = (row * 8 + j) * 16 + (k + const(0)) * 1 + v
        inside = (const(0) <= row - u) & (row - 1 < 4096 + v)
        tail = Min(Max(j * 4 + v, const(u)), const(4096)) - (v * 4 - v)
        split = (f + v) // 64 * 64 + (f + v) // 8 % 8 * 8 + (f + v) % 8
        place = (flat * 32 + tail) // 32 + (flat * 32 + u) % 32 + split
        roots.append(Select(inside, source[place], const(0.0, dtypes.float32)))
        seen.update(postorder(roots[-1]))
        n += 1
    return roots, len(seen)


def main() -> None:
    """Prints nodes per second, rewrites per second, and the time of one schedule expression."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    roots, count = program(100_000)
    best = float("inf")
    gc.collect()
    gc.disable()  # as a compile does: immutable nodes have no cycles
    for _ in range(rounds):
        memo: dict[object, object] = {}
        start = time.process_time()
        results = [normalize(root, ALGEBRA, memo=memo) for root in roots]
        best = min(best, time.process_time() - start)
    gc.enable()
    with record() as events, tracing():
        memo = {}
        for root in roots:
            normalize(root, ALGEBRA, memo=memo)
    fired = sum(e.kind == "rule" for e in events)
    left = len({n for root in results for n in postorder(root)})
    print(f"{count:,} nodes -> {left:,}, {fired:,} rewrites in {best:.3f} s")
    print(f"{count / best:,.0f} nodes/s, {fired / best:,.0f} rewrites/s")
    _schedule_expression(rounds)


def _schedule_expression(rounds: int) -> None:
    outer, inner, lane = var("io"), var("ii"), var("l")
    env: dict[Var, tuple[int, int]] = {outer: (0, 15), inner: (0, 7), lane: (0, 7)}
    row = outer * 64 + inner * 8 + lane
    place = row // 64 * 64 + row % 64 // 8 * 8 + row % 8
    size = len(list(postorder(place)))
    best = float("inf")
    for _ in range(rounds * 20):
        start = time.perf_counter()
        result = simplify(place, env)
        best = min(best, time.perf_counter() - start)
    print(
        f"one schedule expression, {size} nodes with bounds: {best * 1e6:.0f} us -> {result}"
    )


if __name__ == "__main__":
    main()
