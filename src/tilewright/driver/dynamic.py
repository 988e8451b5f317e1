"""Models with dynamic shapes: one Executable per set of shapes.

Each new combination of symbolic extents (and of the values of inputs that decide shapes, such as
the `shape` of a Reshape) is compiled on first use; the least recently used ones are dropped. Calls
whose code exists do not wait for a compilation. The kernel cache on disk makes combinations from
earlier processes cheap. For models without compilation at run time (`jit=False`), see
`driver.ranges.ranged`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

from tilewright.base.errors import ArtifactError
from tilewright.base.once import ComputeOnceCache
from tilewright.base.text import plural
from tilewright.driver.deciding_inputs import deciding_inputs
from tilewright.driver.ranges.open_model import symbolic
from tilewright.graph.infer import FallbackProvider
from tilewright.graph.nodes import Graph
from tilewright.graph.specialize import specialize
from tilewright.runtime.dispatch import Allowed, ShapeDispatch
from tilewright.runtime.executable import Executable
from tilewright.runtime.inputs import convert
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.overrides import Overrides

KEPT = 16  # compiled shape combinations per model


class DynamicExecutable(ShapeDispatch):
    """Runs a graph with symbolic shapes; each new set of shapes is compiled."""

    def __init__(
        self,
        graph: Graph,
        build: Callable[[Callable[[], Graph]], CompiledModel],
        threads: int | None,
        fallback: FallbackProvider,
        memory_limit: int | None = None,
        allowed: Allowed = MappingProxyType({}),
    ) -> None:
        """allowed: the extents of dimensions that are limited."""
        layouts = {v.name: v.type_text for v in graph.defaults}
        super().__init__(
            [symbolic(v) for v in graph.inputs],
            [symbolic(v) for v in graph.shown_outputs],
            graph.nesting,
            Overrides(layouts, graph.origin),
            allowed,
            graph.conditions,
        )
        self._graph = graph
        self._build = build
        self._threads = threads
        self._fallback = fallback
        self._memory_limit = memory_limit
        self._deciding = deciding_inputs(graph, fallback)
        self._kept: ComputeOnceCache[Executable] = ComputeOnceCache(self._surplus)

    @property
    def graph(self) -> Graph:
        """The model, with names for the extents that calls determine."""
        return self._graph

    def specialized(self, inputs: Mapping[str, Any]) -> Executable:
        """The Executable for the shapes of these inputs; compiled first if new."""
        shapes = self.shapes_of(inputs)
        # Converted to the model's dtype, because the key is bytes: in another dtype they differ.
        values = {
            v.name: convert(inputs[v.name], symbolic(v).tensor)
            for v in self._deciding
            if v.name in inputs
        }
        key = (
            tuple(shapes.items()),
            tuple((k, a.tobytes()) for k, a in values.items()),
        )
        return self._kept.get(key, lambda: self._compiled(shapes, values))

    def _compiled(
        self, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, Any]
    ) -> Executable:
        self.extents(shapes)
        model = self._build(
            lambda: specialize(
                self._graph,
                shapes=shapes,
                values=values,
                fallback=self._fallback,
                memory_limit=self._memory_limit,
            )
        )
        return Executable(model, threads=self._threads)

    def _surplus(self, kept: Sequence[Executable]) -> int:
        """How many to drop: keep at most KEPT, and at most half of the memory limit together."""
        most = None if self._memory_limit is None else self._memory_limit // 2
        sizes = [e.peak_bytes for e in kept]
        first = 0
        while len(sizes) - first > 1 and (
            len(sizes) - first > KEPT
            or (most is not None and sum(sizes[first:]) > most)
        ):
            first += 1
        return first

    def save(self, path: str | os.PathLike[str]) -> NoReturn:
        """Raises ArtifactError: an artifact has fixed shapes, or a range of them."""
        raise ArtifactError(
            f"the model has symbolic shapes, so {os.fspath(path)!r} cannot hold it",
            hint="compile with dims={...} (or --dim NAME=N) first; with ranges, also jit=False",
        )

    def __repr__(self) -> str:
        """Inputs and outputs with their symbolic extents, and the number of compiled shapes."""
        ends = (
            ", ".join(f"{v.name}: {v.type_text}" for v in vs)
            for vs in (self._graph.inputs, self._graph.shown_outputs)
        )
        kept = plural(len(self._kept.values()), "compiled shape")
        signature = " -> ".join(f"({e})" for e in ends)
        return f"DynamicExecutable({signature}, {kept})"

    def release(self) -> None:
        """Free memory and compiled shapes; calls compile them again."""
        for made in self._kept.values():
            made.release()
        self._kept.clear()
        self.overrides.clear()
