"""Smaller graphs that still fail: delta debugging by cutting at values.

A step keeps one output, or turns results of operators into inputs with their recorded values;
unused operators are dropped. Steps repeat until none preserves the failure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.graph import interp
from tilewright.graph.infer import FallbackProvider
from tilewright.graph.nodes import Graph, Value

Array = np.ndarray[Any, Any]
Fails = Callable[[Graph, Mapping[str, Array]], bool]


def minimal(
    graph: Graph,
    inputs: Mapping[str, Array],
    fails: Fails,
    fallback: FallbackProvider,
) -> tuple[Graph, dict[str, Array]]:
    """A failing graph and its inputs, such that no step can remove another operator."""
    feeds = dict(inputs)
    arrays = interp.evaluate(graph, feeds, fallback=fallback, keep=lambda v: True)
    while True:
        for smaller in _candidates(graph):
            given = {v.name: np.asarray(arrays[v.name]) for v in smaller.inputs}
            if fails(smaller, given):
                graph = smaller
                feeds = given
                break
        else:
            return graph, feeds


def shortest_end(
    graph: Graph,
    inputs: Mapping[str, Array],
    fails: Fails,
    fallback: FallbackProvider,
) -> tuple[Graph, dict[str, Array]]:
    """The last 1, 2, 4, ... operators, on recorded values: the fewest of these that fail."""
    arrays = interp.evaluate(
        graph, dict(inputs), fallback=fallback, keep=lambda v: True
    )
    count = 1
    while count < len(graph.operations):
        before = graph.operations[: len(graph.operations) - count]
        given = {v for op in before for v in op.writes} - set(graph.outputs)
        smaller = cut(graph, given, graph.outputs)
        feeds = {v.name: np.asarray(arrays[v.name]) for v in smaller.inputs}
        if fails(smaller, feeds):
            return smaller, feeds
        count *= 2
    return graph, dict(inputs)


def _candidates(graph: Graph) -> Iterator[Graph]:
    outputs = tuple(dict.fromkeys(graph.outputs))
    made = [v for op in graph.operations for v in op.writes]
    for v in made:  # the first value that fails by itself has the smallest graph
        if graph.outputs != (v,):
            yield cut(graph, (), (v,))
    if len(graph.outputs) > 1:
        for v in outputs:
            yield cut(graph, (), tuple(o for o in outputs if o is not v))
    half = len(graph.operations) // 2
    if half > 1:
        yield cut(
            graph,
            {v for op in graph.operations[:half] for v in op.writes},
            graph.outputs,
        )
    for op in reversed(graph.operations):
        results = set(op.writes)
        if not results & set(graph.outputs):
            yield cut(graph, results, graph.outputs)


def cut(
    graph: Graph,
    given: Collection[Value],
    outputs: tuple[Value, ...],
) -> Graph:
    """The graph that computes these outputs with the values in `given` as inputs."""
    needed = set(outputs)
    kept = []
    for op in reversed(graph.operations):
        wanted = {v for v in op.writes if v in needed and v not in given}
        if wanted:
            kept.append(op)
            needed |= set(op.reads)
    kept.reverse()
    made = {v for op in kept for v in op.writes}
    inputs = [v for v in (*graph.inputs, *given) if v in needed and v not in made]
    clash = [v for v in given if v in made]
    if clash:  # another result of the same operator is still needed from it
        return graph
    constants = {v: a for v, a in graph.constants.items() if v in needed}
    return replace(
        graph,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        operations=tuple(kept),
        constants=constants,
    )
