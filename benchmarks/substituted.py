"""Searched graphs against plain ones: `python -m benchmarks.substituted [--cost C] [NET ...]`.

For each network of `graphs.py`: the seconds of the search on one core, the predicted gain, the
measured one (both compiled alike, one thread, rounds interleaved, medians of the thread's own
time), and how far the outputs differ.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from functools import partial

import numpy as np

import tilewright as tw
from benchmarks.graphs import NETS, case
from benchmarks.turns import by_turns, stopwatch
from tilewright.base.modes import STRATEGIES
from tilewright.driver.graph_cost import COSTS, TIME
from tilewright.driver.options import Options
from tilewright.driver.steps import build
from tilewright.driver.substitution import search
from tilewright.graph.substitute.optimize import OptimizeSettings

ROUNDS = 41


def compare(name: str, strategy: str, cost: str) -> None:
    """Print a line about one network, and the rules that were taken."""
    made = case(name)
    options = Options(threads=1)
    start = time.thread_time()
    how = OptimizeSettings(strategy=strategy)
    found = search(made.graph, options, build, how, {cost: 1.0})
    seconds = time.thread_time() - start
    plain, better = (tw.compile(g, threads=1) for g in (made.graph, found.graph))
    feeds = dict(made.inputs)
    a, b = plain(feeds), better(feeds)
    gap = float(np.abs(np.asarray(a) - np.asarray(b)).max() / np.abs(a).max())
    both = enumerate((plain, better))
    timed = {n: stopwatch(partial(exe, feeds), time.thread_time) for n, exe in both}
    was, now = map(statistics.median, by_turns(timed, ROUNDS).values())
    steps = found.derivation.steps
    print(
        f"{name:13} search {seconds:6.1f} s  {found.evaluations:5} graphs  "
        f"predicted {found.before / found.after:.3f}  measured {was / now:.3f}  "
        f"({was * 1e3:.2f} -> {now * 1e3:.2f} ms)  gap {gap:.1e}",
        flush=True,
    )
    for rule, count in Counter(s.rule for s in steps).items():
        print(f"    {count:3} x {rule}", flush=True)


def main() -> None:
    """Compare the networks that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NETWORK")
    parser.add_argument("--strategy", choices=STRATEGIES, default=STRATEGIES[0])
    parser.add_argument("--cost", choices=COSTS, default=next(iter(TIME)))
    given = parser.parse_args()
    for name in given.names:
        if name not in NETS:
            parser.error(f"no network {name!r}: one of {', '.join(NETS)}")
    for name in given.names or NETS:
        compare(name, given.strategy, given.cost)


if __name__ == "__main__":
    main()
