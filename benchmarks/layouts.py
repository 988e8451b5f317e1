"""Layouts chosen by cost beside the rule that stores feature maps with their channels last.

    python -m benchmarks.layouts [--networks resnet18,shufflenet] [--measure]

The layouts x of a plan's feature maps, each with its channels last or in front of the image, are
to minimize the sum over the kernels k of t(k, x), the predicted time of k if the maps that it reads
and writes have these layouts. Transitions have no costs of their own: kernels read any layout, and
reading with other strides is part of t. Fusion is that of the rule's plan. The least sum is found
exactly by branch and bound; kernels that all choose for themselves give a lower bound of it.

A line for each network: the rule's predicted time, over that of the least sum and of the bound.
With `--measure`, a choice that differs from the rule's is compiled and compared with it: the same
results, and interleaved rounds in processor time of one thread.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Final

import click

import tilewright as tw
from benchmarks import harness, models
from benchmarks.turns import by_turns, clock_of, stopwatch
from tilewright.compute.nodes import Computation
from tilewright.compute.transforms import order_dims, relayout
from tilewright.driver.compilation import target_of
from tilewright.driver.graph_cost import predicted
from tilewright.driver.options import Options
from tilewright.driver.remembered import RecordedAnswers
from tilewright.driver.same_results import expect_equal
from tilewright.driver.stages import planned
from tilewright.expr.nodes import Buffer
from tilewright.graph.nodes import Graph, Value
from tilewright.plan import layout
from tilewright.plan.lower import Layouts
from tilewright.plan.nodes import FusionGroup, Plan
from tilewright.plan.passes.memory import in_arena
from tilewright.search.exact import branch_and_bound
from tilewright.search.result import SearchLimits

MOST_MAPS: Final = 5  # of one kernel; the others keep the rule's layout
EVALUATIONS: Final = 200_000  # of complete choices
ROUNDS: Final = 41  # of each, interleaved

# For each map whether its channels are in front of the image.
Choice = tuple[bool, ...]


@dataclass(frozen=True)
class KernelTimes:
    """Nanoseconds of one kernel by the layouts of its maps, which are numbered."""

    maps: tuple[int, ...]
    times: Mapping[Choice, float]

    def least(self, chosen: Choice) -> float:
        """The least time if the first maps have these layouts, and the others any."""
        known = [(k, chosen[m]) for k, m in enumerate(self.maps) if m < len(chosen)]
        fitting = (t for c, t in self.times.items() if all(c[k] is x for k, x in known))
        return min(fitting)


def feature_maps(plan: Plan) -> list[Buffer]:
    """The tensors that the rule stores with channels last and that kernels alone use."""
    few = target_of(Options()).plan_costs.few_channels
    orders = layout.choose(plan.graph, few=few)
    moved = {plan.buffers[v].name for v in orders if v in plan.buffers}
    given = {b for g in plan.groups if g.kernel is not None for b in plan.touched(g)}
    outside = {
        b for s in plan.steps if not isinstance(s, FusionGroup) for b in plan.touched(s)
    }
    touched = dict.fromkeys(b for g in plan.groups for b in plan.touched(g))
    return [
        b
        for b in touched
        if b.name in moved and in_arena(plan, b) and b not in given | outside
    ]


def in_front(b: Buffer) -> tuple[Buffer, tuple[int, ...]]:
    """The tensor with its last axis, the channels, behind the first one."""
    last = len(b.shape) - 1
    order = (0, last, *range(1, last))
    return Buffer(b.name, tuple(b.shape[a] for a in order), b.dtype), order


def as_stored(group: Sequence[Computation], layouts: Layouts) -> list[Computation]:
    """The Computations where these maps have other buffers and orders of axes."""
    return [order_dims(relayout(c, layouts)) if layouts else c for c in group]


def kernel_times(plan: Plan, said: RecordedAnswers) -> list[KernelTimes]:
    """The times of all kernels that read or write a map, by layout."""
    number = {b: n for n, b in enumerate(feature_maps(plan))}
    found = []
    for group in plan.groups:
        maps = [b for b in plan.touched(group) if b in number][:MOST_MAPS]
        if not maps:
            continue
        times = {}
        for choice in product((False, True), repeat=len(maps)):
            pairs = zip(maps, choice, strict=True)
            layouts = {b: in_front(b) for b, first in pairs if first}
            stored = as_stored(group.computations, layouts)
            times[choice] = said.predicted_time(stored, plan.data)
        found.append(KernelTimes(tuple(number[b] for b in maps), times))
    return found


def cheapest(tables: Sequence[KernelTimes], count: int) -> tuple[Choice, float, bool]:
    """The layouts of all maps with the least sum, the sum, and whether that is proven."""

    def cost(chosen: Choice) -> float:
        return sum(t.least(chosen) for t in tables)

    def expand(chosen: Choice) -> list[Choice] | None:
        if len(chosen) == count:
            return None
        return [(*chosen, False), (*chosen, True)]

    root: Choice = ()
    limits = SearchLimits(evaluations=EVALUATIONS)
    result = branch_and_bound(root, expand, cost, cost, limits=limits)
    assert result.state is not None
    return result.state, result.cost, result.bound >= result.cost * (1 - 1e-9)


def by_cost(name: str, plan: Plan, said: RecordedAnswers) -> set[str]:
    """Print a network's line; the names of the maps with channels in front."""
    tables = kernel_times(plan, said)
    maps = feature_maps(plan)
    whole = predicted(plan, said) * 1e9
    rule = sum(t.times[(False,) * len(t.maps)] for t in tables)
    bound = sum(min(t.times.values()) for t in tables)
    chosen, least, proven = cheapest(tables, len(maps))
    gain, most = whole / (whole - rule + least), whole / (whole - rule + bound)
    front = {b.name for b, first in zip(maps, chosen, strict=True) if first}
    shown = f"({len(front)} in front{'' if proven else ', not proven'})"
    click.echo(
        f"{name:14} {len(maps):4} maps {whole / 1e3:10.1f} us, by cost {gain:7.4f} {shown}, "
        f"at most {most:7.4f}"
    )
    return front


@contextmanager
def channels_in_front(plan: Plan, front: set[str]) -> Iterator[None]:
    """Plans made inside store these maps as their operators write them."""
    usual = layout.choose
    values = {v.name for v, b in plan.buffers.items() if b.name in front}

    def chosen(
        graph: Graph, fixed: Iterable[Value] = (), few: int = 0
    ) -> dict[Value, tuple[int, ...]]:
        found = usual(graph, fixed, few)
        return {v: order for v, order in found.items() if v.name not in values}

    layout.choose = chosen
    try:
        yield
    finally:
        layout.choose = usual


def measure(name: str, path: str, plan: Plan, front: set[str]) -> None:
    """Print how many times as fast a network is with these maps' channels in front."""
    made: list[Any] = [tw.compile(path, threads=1, records=False, cache=False)]
    with channels_in_front(plan, front):
        made.append(tw.compile(path, threads=1, records=False, cache=False))
    feeds = models.inputs(name)
    expect_equal(made[0], made[1], feeds)
    clock = clock_of(1)
    timed = {n: stopwatch(partial(e, feeds), clock) for n, e in enumerate(made)}
    rule, cost = map(statistics.median, by_turns(timed, ROUNDS).values())
    click.echo(f"{name:14} measured {rule * 1e6:10.1f} us, by cost {rule / cost:7.4f}")


@click.command(epilog="Example: python -m benchmarks.layouts --networks resnet18")
@harness.networks_option
@click.option("--measure", "timed", is_flag=True, help="Compile and time what differs.")
def main(networks: list[str], timed: bool) -> None:
    """Compare layouts chosen by cost with channels last."""
    options = Options(threads=1)
    said = RecordedAnswers(target_of(options))
    for name in networks:
        path, _ = harness.prepare(name, models.default_directory())
        plan, _ = planned(str(path), (), None, options)
        front = by_cost(name, plan, said)
        if front and timed:
            measure(name, str(path), plan, front)


if __name__ == "__main__":
    main()
