"""The passes over a graph, including the substitutions that `optimize=` selects."""

from __future__ import annotations

from dataclasses import field
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.driver.compilation import onnx_fallback, optimize
from tilewright.driver.graph_cost import TIME, GraphCost
from tilewright.driver.options import Options
from tilewright.graph.nodes import Graph
from tilewright.graph.rules.substitutions import SUBSTITUTIONS
from tilewright.graph.substitute.greedy import LowerArithmetic
from tilewright.graph.substitute.pricing import Pricing
from tilewright.graph.substitute.steps import Substitution
from tilewright.ir.passes import Pass
from tilewright.runtime.device import HOST
from tilewright.targets.base import Target

# The number of edges around a substitution to include in its cost: it may be fused with them.
RADIUS: Final = 1


def passed(
    graph: Graph, options: Options, target: Target
) -> tuple[Graph, tuple[Substitution, ...]]:
    """The graph after its passes, and the substitutions that they applied.

    Without fusion, only a search that is asked for substitutes. target: see
    `Compilation.multiplies`. Raises InputError if a search is requested for a graph
    with symbolic extents.
    """
    taken: list[Substitution] = []
    less: Pass[Graph] | None = None
    if options.optimize == "fast":
        known = options.target == target.name and target.device == HOST
        if known and options.fusion:
            rules = [r for r in SUBSTITUTIONS if r.allowed(options.math)]
            cost = GraphCost(options, TIME)
            pricing = Pricing(cost, RADIUS, data=cost.data)
            less = LowerArithmetic(rules, pricing, onnx_fallback(), taken)
    elif options.optimize != "off":
        less = Search(options, taken)
    return optimize(graph, options, target, less), tuple(taken)


@dataclass(frozen=True)
class Search(Pass[Graph]):
    """Search for the graph with the fastest kernels. taken: receives the steps of the search."""

    options: Options = field(repr=False)
    taken: list[Substitution] = field(repr=False)

    def run(self, program: Graph) -> Graph:
        # Imported here because only a search needs it.
        from tilewright.driver.substitution import searched

        found = searched(program, self.options)
        self.taken.extend(found.derivation.steps)
        return found.graph
