"""The arenas of networks beside the lower bound, the most bytes alive at once; before compiling.

    python -m benchmarks.arenas                 # the benchmark's networks
    python -m benchmarks.arenas --small         # the small networks of the tests
    python -m benchmarks.arenas --random 200    # random graphs

A line for each network; the exit code is 1 if an arena is more than 5% above its bound.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from benchmarks import harness
from tilewright.driver.options import Options
from tilewright.driver.stages import planned
from tilewright.plan.memory_report import MemoryUse, memory_use

MOST = 1.05  # of the bound


def use_of(source: Any) -> MemoryUse:
    """The memory between the kernels of a model."""
    plan, _ = planned(source, (), None, Options())
    return memory_use(plan)


def sources(
    networks: list[str], small: bool, count: int, directory: Path
) -> Iterator[tuple[str, Any]]:
    """The names and models that were asked for; directory: of the networks' files."""
    if small:
        from tilewright.testing.networks import NETWORKS

        yield from ((name, make().graph) for name, make in NETWORKS.items())
    if count:
        from tilewright.testing.random_graphs import random_case

        yield from (
            (f"random {seed}", random_case(seed).graph) for seed in range(count)
        )
    if not small and not count:
        yield from ((n, str(harness.prepare(n, directory)[0])) for n in networks)


@click.command(epilog="Example: python -m benchmarks.arenas --networks resnet50,minilm")
@harness.networks_option
@click.option("--small", is_flag=True, help="The small networks of the tests.")
@click.option("--random", "count", default=0, help="So many random graphs.")
@harness.directory_option
def main(networks: list[str], small: bool, count: int, directory: Path) -> None:
    """Compare the arenas of networks with the most bytes alive at once."""
    worst = 1.0
    optimal = total = 0
    for name, source in sources(networks, small, count, directory):
        use = use_of(source)
        ratio = use.arena / use.peak if use.peak else 1.0
        worst = max(worst, ratio)
        total += 1
        optimal += ratio == 1
        click.echo(
            f"{name:24} {use.peak:12,} alive {use.arena:12,} in all {ratio:7.4f}"
        )
    click.echo(f"{optimal} of {total} at the bound, the worst {worst:.4f} of it")
    sys.exit(worst > MOST)


if __name__ == "__main__":
    main()
