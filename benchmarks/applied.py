"""What was applied to a network: graph rules, substitutions, and the operators of each kernel.

    python -m benchmarks.applied                                  # Inception-v2 and an encoder
    python -m benchmarks.applied --optimize search model.onnx     # after a search

Nothing is compiled. Kernels with the same operators are counted together, the most frequent first;
what a kernel computes as it reads or writes, such as a bias or a transpose, is one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from benchmarks import harness
from tilewright.base import events
from tilewright.driver.compilation import target_of
from tilewright.driver.graph_passes import passed
from tilewright.driver.options import Options
from tilewright.driver.stages import planned
from tilewright.frontends.load import load
from tilewright.graph.nodes import Graph

NETWORKS = ("inception_v2", "minilm")
MOVES = "no operator: padding, or another layout"


def applied(source: Any, options: Options) -> Iterator[str]:
    """Lines about one model."""
    graph = source if isinstance(source, Graph) else load(source)
    target, alone = target_of(options), replace(options, optimize="off")
    with events.record() as seen:
        passed(graph, alone, target)
    rules = Counter(e.fields["rule"] for e in seen if e.kind == "rule")
    # A search also plans the graphs that it prices, which are not what was applied.
    after, taken = passed(graph, options, target)
    with events.record() as seen:
        plan, _ = planned(after, (), None, alone)
    fused = Counter(e.fields["rule"].strip("_") for e in seen if e.kind == "fuse")
    names = {op.label: op.op_type for op in passed(after, alone, target)[0].operations}
    kernels = Counter(
        " + ".join(names.get(name, name) for name in step.sources) or MOVES
        for step in plan.steps
        if hasattr(step, "sources")
    )
    yield from counted("graph rules", rules)
    yield from counted("substitutions", Counter(step.rule for step in taken))
    yield from counted("fusions", fused)
    yield from counted("kernels", kernels)


def counted(title: str, found: Mapping[str, int]) -> Iterator[str]:
    """A title with the sum, and a line for each kind."""
    yield f"{title}: {sum(found.values())}"
    for name, count in sorted(found.items(), key=lambda item: -item[1]):
        yield f"  {count:4} x {name}"


@click.command(epilog="Example: python -m benchmarks.applied minilm")
@click.argument("networks", nargs=-1, metavar="[NETWORK|FILE]...")
@click.option(
    "--optimize", type=click.Choice(["off", "fast", "search"]), default="fast"
)
@harness.directory_option
def main(networks: tuple[str, ...], optimize: str, directory: Path) -> None:
    """Say what was applied to each network."""
    for name in networks or NETWORKS:
        path = name
        if not Path(name).is_file():
            path = str(harness.prepare(name, directory)[0])
        click.echo(f"== {name}")
        for line in applied(path, Options(threads=1, optimize=optimize)):
            click.echo(line)


if __name__ == "__main__":
    main()
