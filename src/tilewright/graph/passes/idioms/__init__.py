"""Idioms that exporters write out become the operator that they mean.

Each is a function from graph to graph that emits the event `idiom` for what it finds. (A decomposed
GELU needs none: a chain of maps is fused whatever it means.)
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.graph.nodes import Graph
from tilewright.graph.passes.idioms.attention import recognise_attention
from tilewright.graph.passes.idioms.layer_norm import recognise_layer_norm

IDIOMS: tuple[Callable[[Graph], Graph], ...] = (recognise_layer_norm, recognise_attention)


def recognise(graph: Graph) -> Graph:
    """`graph` with every idiom as one operator."""
    for idiom in IDIOMS:
        graph = idiom(graph)
    return graph
