"""Run data through a model: every requested tensor goes to its observer, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tilewright.base import events
from tilewright.base.errors import InputError
from tilewright.graph.infer import FallbackProvider
from tilewright.graph.interp import evaluate
from tilewright.graph.nodes import Graph, Value

Array = NDArray[Any]
Sample = Mapping[str, Array]
# Runs a model on a sample and returns the requested values by name.
Run = Callable[[Sample], Mapping[str, Any]]
# Makes a `Run` for a graph that returns all of its outputs.
Runner = Callable[[Graph], Run]


class TensorObserver(Protocol):
    """Observes a tensor."""

    def see(
        self,
        array: Array,
    ) -> None:
        """Count an array."""
        ...


S = TypeVar("S", bound=TensorObserver)


def observe(
    graph: Graph,
    samples: Iterable[Sample],
    values: Sequence[Value],
    make: Callable[[Value], S],
    run: Run,
) -> dict[Value, S]:
    """The observers from `make` for each of these values, after all samples.

    run: of the graph `with_outputs` of these values. One sample at a time runs through the model
    and is then dropped. Raises InputError if there are no samples.
    """
    found = {v: make(v) for v in dict.fromkeys(values)}
    names = {v.name for v in graph.inputs}
    seen = 0
    for seen, sample in enumerate(samples, 1):
        with events.span("calibrate", name=f"sample {seen}"):
            arrays = run(sample)
            for v, observer in found.items():
                observer.see(
                    np.asarray((sample if v.name in names else arrays)[v.name])
                )
    if not seen:
        raise InputError("there are no samples", where=f"graph {graph.name}")
    return found


def with_outputs(
    graph: Graph,
    values: Sequence[Value],
) -> Graph:
    """The graph with these values as its outputs, as far as it computes them."""
    outputs = [v for v in dict.fromkeys(values) if v in graph.producers]
    return graph.with_operations(graph.operations, outputs=outputs or graph.outputs)


def interpreter(fallback: FallbackProvider | None) -> Runner:
    """Runs graphs in the interpreter."""

    def runner(graph: Graph) -> Run:
        return lambda sample: evaluate(graph, sample, fallback=fallback)

    return runner
