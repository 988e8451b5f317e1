"""The receiver as a task graph on N processing elements: `tilewright explore` of its Computations.

python examples/pusch/explore.py [subcarriers [antennas [layers]]]

Estimation, gram matrix, factorization, matched filter and solution: each as what suits it best, as
one task, as one for each block of subcarriers (for each antenna, where that is the outermost loop),
or in the classical expansions, which the matched filter has, a product of complex matrices.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import chain
from chain import LANES
from linear import METHODS
from slot import Layout

from tilewright import te as t
from tilewright.dataflow.explore import Grain, explore
from tilewright.dataflow.lower import OperatorNetwork
from tilewright.graph.nodes import Graph, Value
from tilewright.plan.nodes import FusionGroup, Plan

PES = [8, 16, 32, 64, 128]


class Stack:
    """Tensors of one shape, indexed as if they were one tensor with a dimension more at `axis`."""

    def __init__(self, tensors: Sequence[t.Tensor], axis: int = 0) -> None:
        self.tensors, self.axis = tensors, axis

    def __getitem__(self, index: tuple[Any, ...]) -> Any:
        return self.tensors[index[self.axis]][
            index[: self.axis] + index[self.axis + 1 :]
        ]


def network(layout: Layout, method: str = "cholesky") -> OperatorNetwork:
    """The chain from what arrives to unbiased symbols, a group for each Computation."""
    way, n, k = METHODS[method], chain.blocks(layout), layout.layers
    shapes = {
        "y": (2, n, layout.symbols, layout.antennas, LANES),
        "pilots": (2, layout.pilots, layout.subcarriers),
        "sign": (k, layout.pilots, 2),
        "noise": (1,),
    }
    given = {name: t.placeholder(shape, name=name) for name, shape in shapes.items()}
    y = given["y"]
    pairs = chain.least_squares(layout, y, given["pilots"], given["sign"])
    h = chain.interpolate(layout, pairs)
    rows = chain.gram(layout, Stack(h))
    factors = chain.factorize(layout, way, rows, given["noise"])
    sums = chain.matched(layout, Stack(h), y)
    x = chain.solve(layout, way, sums, Stack(factors, 1))
    steps = [tensors[0].op for tensors in (pairs, h, *rows, factors, sums, x)]
    stages = [FusionGroup(c.name, (c,), (c.name,)) for c in map(t.computation, steps)]
    buffers = {
        Value(tensor.name, tensor.dtype, tensor.shape): tensor.buffer
        for tensor in (*given.values(), *x)
    }
    values = list(buffers)
    graph = Graph(
        f"pusch_{method}", tuple(values[: len(given)]), tuple(values[len(given) :]), ()
    )
    return OperatorNetwork(graph.name, Plan(graph, tuple(stages), buffers))


def main() -> None:
    words = sys.argv[1:]
    subcarriers, antennas, layers = (
        int(w) for w in [*words, *["192", "4", "4"][len(words) :]]
    )
    layout = Layout(subcarriers, antennas, layers)
    print(f"{antennas} x {layers}, {subcarriers} subcarriers; makespans in cycles")
    print(f"{'':<10}{'tasks':>7}{'':<4}" + "".join(f"{pes:>6} PEs" for pes in PES))
    for method in METHODS:
        net = network(layout, method)
        for grain in Grain:
            found = explore(net, PES, grain=grain)
            best = [found.best(pes) for pes in PES]
            spans = "".join(f"{point.makespan:>10,}" for point in best)
            print(f"{method:<10}{best[-1].tasks:>7,}{spans}   {grain}")


if __name__ == "__main__":
    main()
