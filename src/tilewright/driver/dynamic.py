"""Models with dynamic shapes: one Executable per set of shapes.

Each new combination of symbolic extents (and of the values of inputs that decide shapes, such as
the `shape` of a Reshape) is compiled on first use; the least recently used ones are dropped. Calls
whose code exists do not wait for a compilation. The kernel cache on disk makes combinations from
earlier processes cheap. For models without compilation at run time (`jit=False`), see
`driver.ranged`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

from tilewright.base.errors import ArtifactError
from tilewright.base.once import ComputeOnceCache
from tilewright.base.text import plural
from tilewright.driver.open_model import symbolic
from tilewright.graph.bounded.bound import bound
from tilewright.graph.infer import FallbackProvider, specialize
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.open_extents import DOMAIN
from tilewright.graph.ops.registry import definition_of, has_trait
from tilewright.graph.ops.traits import POINTWISE
from tilewright.runtime.dispatch import Allowed, ShapeDispatch
from tilewright.runtime.executable import Executable
from tilewright.runtime.inputs import convert
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.overrides import Overrides

KEPT = 16  # compiled shape combinations per model
VALUE_ELEMENTS = 64  # the largest input that may determine shapes
# Operators whose result shapes depend on the shapes of their operands, not on their values.
SHAPED_BY_TYPES = frozenset(
    (
        *("BatchNormalization", "Concat", "Conv", "ConvTranspose", "Einsum"),
        *("Gather", "GatherElements", "GatherND", "Gemm", "GridSample"),
        *("GroupNormalization", "InstanceNormalization", "LayerNormalization"),
        *("MatMul", "RMSNormalization", "RoiAlign", "ScatterElements", "ScatterND"),
    )
)
CONTROL = {"If": (0,), "Loop": (0, 1)}  # inputs that decide which operations run


def shape_inputs(graph: Graph) -> tuple[Value, ...]:
    """The small inputs that determine values needed to type or compile an operator."""
    deciding = {
        v
        for op in graph.operations
        for n, v in enumerate(op.inputs)
        if v is not None and v.static and _decides(op, n)
    }
    if not deciding:
        return ()
    # The inputs that each value is computed from; None if one of them is too large to be a key.
    sources: dict[Value, frozenset[Value] | None] = {
        v: frozenset([v]) if _may_decide(v) else None for v in graph.inputs
    }
    for op in graph.operations:
        definition = definition_of(op)
        by_type = definition is not None and definition.static_value is not None
        typed = definition is not None or op.qualified in CONTROL
        found: frozenset[Value] | None = frozenset() if typed else None
        for v in () if by_type else op.reads:
            more = sources.get(v, frozenset())
            found = None if found is None or more is None else found | more
        sources |= dict.fromkeys(op.writes, found)
    needed = frozenset[Value]().union(*(sources.get(v) or () for v in deciding))
    return tuple(v for v in graph.inputs if v in needed)


def deciding_inputs(graph: Graph, fallback: FallbackProvider) -> tuple[Value, ...]:
    """The `shape_inputs` whose values code is specialized for.

    Empty if they decide only branches and loops, and the same code works for all values.
    """
    found = shape_inputs(graph)
    if found and any(op.qualified in CONTROL for op in graph.operations):
        return found if shape_inputs(bound(graph, fallback)) else ()
    return found


def _decides(op: Operation, n: int) -> bool:
    """Whether the value of input `n` decides the shapes of results, or the code."""
    if op.domain == DOMAIN:  # its results have room for the largest extents
        return False
    definition = definition_of(op)
    if definition is None:
        return n in CONTROL.get(op.qualified, ())
    if n in definition.by_value:
        return True
    if op.qualified in SHAPED_BY_TYPES or has_trait(op, POINTWISE):
        return False
    after_data = n > 0 or len(op.inputs) == 1 or op.qualified == "Range"
    return after_data and not all(o.static for o in op.writes)


def _may_decide(v: Value) -> bool:
    if v.kind != "tensor" or v.dtype is None or v.shape is None or len(v.shape) > 1:
        return False
    return all(isinstance(d, int) and d <= VALUE_ELEMENTS for d in v.shape)


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
            [symbolic(v) for v in graph.outputs],
            graph.nesting,
            Overrides(layouts, graph.origin),
            allowed,
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
            for vs in (self._graph.inputs, self._graph.outputs)
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
