"""How large a saving of arithmetic greedy substitutions should look at: `greedy.LEAST`.

    python -m benchmarks.least_saving [NET ...] [--shares 1e-2,1e-3,1e-4,0]

For each share of a graph's arithmetic, steps that save less are ignored. A line for each network
and share: processor time, graphs that were priced, steps taken, and the predicted gain. Networks
are those of `graphs.py` and the small ones of the tests; by default, every third of these.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from benchmarks.graphs import NETS, case
from tilewright.driver.compilation import onnx_fallback, optimize, target_of
from tilewright.driver.graph_cost import TIME, GraphCost
from tilewright.driver.graph_passes import RADIUS
from tilewright.driver.options import Options
from tilewright.graph.nodes import Graph
from tilewright.graph.rules.substitutions import SUBSTITUTIONS
from tilewright.graph.substitute.greedy import lower_arithmetic
from tilewright.graph.substitute.pricing import Pricing
from tilewright.testing.networks import NETWORKS


def optimized(name: str, options: Options) -> Graph:
    """A network as the greedy steps get it."""
    made = case(name) if name in NETS else NETWORKS[name]()
    return optimize(made.graph, options, target_of(options))


def compare(name: str, shares: Sequence[float]) -> dict[float, tuple[float, int, int]]:
    """Seconds, graphs priced and steps taken, by share; prints them."""
    options = Options(threads=1)
    rules = [r for r in SUBSTITUTIONS if r.allowed(options.math)]
    graph = optimized(name, options)
    found = {}
    for share in shares:
        cost = GraphCost(options, TIME)
        pricing = Pricing(cost, RADIUS, data=cost.data)
        start = time.process_time()
        after, steps = lower_arithmetic(graph, rules, pricing, onnx_fallback(), share)
        seconds = time.process_time() - start
        found[share] = (seconds, pricing.asked, len(steps))
        gain = pricing.whole(graph) / pricing.whole(after) if steps else 1.0
        click.echo(
            f"{name:24} {share:8g} {1e3 * seconds:8.1f} ms {found[share][1]:4} priced "
            f"{len(steps):3} taken {gain:7.4f}"
        )
    return found


@click.command(epilog="Example: python -m benchmarks.least_saving inception_v2")
@click.argument("names", nargs=-1, type=click.Choice([*NETS, *NETWORKS]))
@click.option("--shares", default="1e-2,1e-3,1e-4,0", help="Commas between them.")
def main(names: Sequence[str], shares: str) -> None:
    """Compare shares of arithmetic below which savings are ignored."""
    tried = [float(s) for s in shares.split(",")]
    rows = [compare(n, tried) for n in names or [*NETWORKS][::3]]
    for share in tried:
        seconds, priced, taken = (sum(row[share][k] for row in rows) for k in range(3))
        click.echo(f"{share:g}: {seconds:.2f} s, {priced} priced, {taken} taken")


if __name__ == "__main__":
    main()
