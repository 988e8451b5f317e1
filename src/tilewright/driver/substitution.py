"""The search over graphs with what this room hands in: the rules, the cost, the host's fallback."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from tilewright.base import events
from tilewright.base.errors import InputError
from tilewright.base.text import listing
from tilewright.driver.compilation import onnx_fallback
from tilewright.driver.compile_lock import exclusive
from tilewright.driver.graph_cost import Build, GraphCost
from tilewright.driver.options import Options
from tilewright.graph.nodes import Graph
from tilewright.graph.rules.batchnorm import BATCHNORM
from tilewright.graph.rules.driver import rewrite
from tilewright.graph.rules.no_ops import NO_OPS
from tilewright.graph.rules.registry import registered
from tilewright.graph.rules.rule import Rule
from tilewright.graph.rules.substitutions import SUBSTITUTIONS
from tilewright.graph.substitute.derivation import GraphDerivation, replay
from tilewright.graph.substitute.optimize import Outcome, Settings, optimize
from tilewright.graph.substitute.pricing import arithmetic
from tilewright.graph.substitute.steps import Substitution, folded
from tilewright.search.result import Limits

TIME: Final[Mapping[str, float]] = {"time": 1.0}
# Without kernels: what lowers the arithmetic of the operators, step by step.
FAST: Final = Settings(alpha=1.0, budget=20, patience=1, part=20)
# How `optimize=` searches by the time of kernels.
SEARCHES: Final[Mapping[str, Settings]] = {
    "search": Settings(),
    "saturate": Settings(strategy="saturate"),
}


def substitutions() -> tuple[Rule, ...]:
    """The compiler's own, and those that a user registered."""
    return (*SUBSTITUTIONS, *registered())


def search(
    graph: Graph,
    options: Options,
    build: Build,
    settings: Settings | None = None,
    weights: Mapping[str, float] = TIME,
    limits: Limits | None = None,
) -> Outcome:
    """The cheapest graph that substitutions lead to, for the target of `options`.

    build: compiles a graph, to measure it. weights: of the costs, see `graph_cost`. Raises
    InputError for a graph whose inputs have symbolic extents, and for weights or settings that are
    wrong.
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
        )


def searched(
    graph: Graph, options: Options, build: Build
) -> tuple[Graph, tuple[Substitution, ...]]:
    """The graph that `optimize=` asks for, and the steps to it; build: as for `search`.

    Raises InputError for a graph whose inputs have symbolic extents, and UnsupportedError for a
    target that is not the host.
    """
    if options.optimize == "fast":
        how = replace(FAST, math=options.math)
        return _less_arithmetic(graph, options, build, how)
    how = replace(SEARCHES[options.optimize], math=options.math)
    found = search(graph, options, build, how)
    return found.graph, found.derivation.steps


def _less_arithmetic(
    graph: Graph, options: Options, build: Build, how: Settings
) -> tuple[Graph, tuple[Substitution, ...]]:
    """As `searched`, by the arithmetic of the operators; kernels are priced once, at the end."""
    _expect_static(graph)
    with exclusive(), events.span("substitute"):
        cost = GraphCost(options, TIME, build)
        start = _prepared(graph, options)
        rules, fallback = substitutions(), onnx_fallback()
        found = optimize(start, rules, arithmetic, how, fallback=fallback)
        if found.derivation.steps and cost(found.graph) < cost(start):
            return found.graph, found.derivation.steps
        return graph, ()


def replayed(graph: Graph, derivation: GraphDerivation, options: Options) -> Graph:
    """The graph after the steps that a search took. Raises InputError as `replay`."""
    _expect_static(graph)
    with exclusive():
        start = folded(_prepared(graph, options), onnx_fallback())
        return replay(start, derivation, substitutions(), onnx_fallback())


def _prepared(graph: Graph, options: Options) -> Graph:
    """The graph as the search begins with it: what every compilation does first is done."""
    graph = rewrite(graph, NO_OPS)
    return graph if options.math == "exact" else rewrite(graph, [BATCHNORM])


def _expect_static(graph: Graph) -> None:
    loose = [repr(v.name) for v in graph.inputs if v.kind == "tensor" and not v.static]
    if loose:
        raise InputError(
            f"the shape of {listing(loose)} is symbolic",
            hint="give its dimensions: costs depend on them",
        )
