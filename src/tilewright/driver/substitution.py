"""The search over graphs, with the compiler's rules, cost function and host fallback."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from tilewright.base import events
from tilewright.base.errors import InputError
from tilewright.base.text import listing
from tilewright.driver.compilation import onnx_fallback
from tilewright.driver.compile_lock import exclusive
from tilewright.driver.graph_cost import TIME, Build, GraphCost
from tilewright.driver.options import Options
from tilewright.graph.nodes import Graph
from tilewright.graph.rules.batchnorm import BATCHNORM
from tilewright.graph.rules.driver import rewrite
from tilewright.graph.rules.no_ops import NO_OPS
from tilewright.graph.rules.registry import registered
from tilewright.graph.rules.rule import Rule
from tilewright.graph.rules.substitutions import SUBSTITUTIONS
from tilewright.graph.substitute.derivation import GraphDerivation, replay
from tilewright.graph.substitute.optimize import (
    OptimizeOutcome,
    OptimizeSettings,
    optimize,
)
from tilewright.graph.substitute.steps import folded
from tilewright.search.result import SearchLimits

# The searches of `optimize=`, which minimize the time of kernels.
SEARCHES: Final[Mapping[str, OptimizeSettings]] = {
    "search": OptimizeSettings(),
    "saturate": OptimizeSettings(strategy="saturate"),
}


def substitutions() -> tuple[Rule, ...]:
    """The compiler's rules and those that the user registered."""
    return (*SUBSTITUTIONS, *registered())


def search(
    graph: Graph,
    options: Options,
    build: Build | None,
    settings: OptimizeSettings | None = None,
    weights: Mapping[str, float] = TIME,
    limits: SearchLimits | None = None,
) -> OptimizeOutcome:
    """The cheapest graph that substitutions lead to, for the target of `options`.

    build: compiles a graph to measure it, if that is a cost. weights: of the costs; see
    `graph_cost`. Raises InputError for a graph whose inputs have symbolic extents, and for invalid
    weights or settings.
    """
    _expect_static(graph)
    with exclusive(), events.span("substitute"):
        graph = _prepared(graph, options)
        cost = GraphCost(options, weights, build)
        return optimize(
            graph,
            substitutions(),
            cost,
            settings,
            limits=limits,
            fallback=onnx_fallback(),
            least=cost.least,
            data=cost.data,
        )


def searched(graph: Graph, options: Options) -> OptimizeOutcome:
    """The outcome of the search that `optimize=` requests. Raises InputError as `search`."""
    how = replace(SEARCHES[options.optimize], math=options.math)
    return search(graph, options, None, how)


def replayed(graph: Graph, derivation: GraphDerivation, options: Options) -> Graph:
    """The graph after the steps that a search took. Raises InputError as `replay`."""
    _expect_static(graph)
    with exclusive():
        start = folded(_prepared(graph, options), onnx_fallback())
        return replay(start, derivation, substitutions(), onnx_fallback())


def _prepared(graph: Graph, options: Options) -> Graph:
    """The initial graph of a search: after the first rewrites of every compilation."""
    graph = rewrite(graph, NO_OPS)
    return graph if options.math == "exact" else rewrite(graph, [BATCHNORM])


def _expect_static(graph: Graph) -> None:
    loose = [repr(v.name) for v in graph.inputs if v.kind == "tensor" and not v.static]
    if loose:
        raise InputError(
            f"the shape of {listing(loose)} is symbolic",
            hint="give its dimensions: costs depend on them",
        )
