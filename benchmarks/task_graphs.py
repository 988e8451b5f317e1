"""Streaming schedules of the published task graphs: speedup and schedule length ratios.

python -m benchmarks.task_graphs [--graphs N] [NAME:SIZE ...]

Each graph is made with random rates, N times; the table shows medians. The speedup is all work over
the makespan, SLR the makespan over the critical path without streaming, SSLR the makespan over the
streaming depth. The sizes are the paper's: 8, 223, 135 and 120 tasks.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from statistics import median

from tilewright.dataflow import schedule
from tilewright.dataflow.baseline import nonstreaming_makespan
from tilewright.dataflow.depth import critical_path
from tilewright.dataflow.published import published

# Graphs, and the numbers of processing elements that they are scheduled on.
GRAPHS = {
    "chain:8": (2, 4, 6, 8),
    "fft:32": (32, 64, 96, 128),
    "gaussian:16": (32, 64, 96, 128),
    "cholesky:8": (32, 64, 96, 128),
}
COUNTS = (32, 64, 96, 128)
HEAD = ("graph", "tasks", "edges", "PEs", "LTS", "RLX", "no streams", "SSLR", "SLR")


def rows(spec: str, count: int) -> Iterator[tuple[str, ...]]:
    """A line for each number of processing elements."""
    name, _, size = spec.partition(":")
    graphs = [published(name, int(size), seed=seed) for seed in range(count)]
    edges = [e for e in graphs[0].edges if _inside(graphs[0], e.source, e.target)]
    for pes in GRAPHS.get(spec, COUNTS):
        made = [
            (graph, schedule(graph, pes, "lts"), schedule(graph, pes, "rlx"))
            for graph in graphs
        ]
        plain = [nonstreaming_makespan(graph, pes) for graph in graphs]
        figures = (
            median(lts.speedup for _, lts, _ in made),
            median(rlx.speedup for _, _, rlx in made),
            median(g.total_work / n for g, n in zip(graphs, plain, strict=True)),
            median(lts.sslr for _, lts, _ in made),
            median(n / critical_path(g) for g, n in zip(graphs, plain, strict=True)),
        )
        shown = [f"{figure:.2f}" for figure in figures]
        yield spec, f"{graphs[0].tasks}", f"{len(edges)}", f"{pes}", *shown


def _inside(graph, source: int, target: int) -> bool:  # type: ignore[no-untyped-def]
    return all(graph.nodes[n].name not in ("in", "out") for n in (source, target))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("graphs", nargs="*", default=list(GRAPHS), metavar="NAME:SIZE")
    parser.add_argument("--graphs", dest="count", type=int, default=20)
    options = parser.parse_args(arguments)
    print(line(HEAD))
    for spec in options.graphs:
        for row in rows(spec, options.count):
            print(line(row))


def line(cells: Sequence[str]) -> str:
    """A row as it is printed."""
    first, *others = cells
    return f"{first:<12}" + "".join(f"{cell:>11}" for cell in others)


if __name__ == "__main__":
    main()
