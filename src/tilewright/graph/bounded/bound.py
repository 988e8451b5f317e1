"""Rewriting graphs with data-dependent extents as graphs of bounded tensors with counts.

    NonZero(x): int64[1, ?]   becomes   places: int64[1, 900], count: int64 = NonZero'(x)

A tensor with an open extent becomes a buffer of its maximal size plus a count that the run
computes. An operator runs on the whole buffer if that yields the right elements before the count.
Operators that combine elements along an open axis (sums, products, softmax) see the identity past
the count. Indices are checked against the count. Operators that ask for a shape get the counts.
Elements past a count are undefined and never read. Model outputs are cut to their counts (`Trim`).
All shapes are then static, so the graph compiles to native code that runs in one call.

A rule says how an operator handles bounded operands (`context.RULES`). An operator without an
applicable rule gets tensors of their true shapes and runs as a host fallback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace

from tilewright.base.errors import MemoryLimitError, placed
from tilewright.base.memory import memory_limit
from tilewright.base.names import fresh
from tilewright.graph.bounded import branches, indices, loops, parts, shapes, sums  # noqa: F401
from tilewright.graph.bounded.builder import BoundedBuilder
from tilewright.graph.bounded.contents import KnownContents
from tilewright.graph.bounded.context import RULES, BoundedContext, Results
from tilewright.graph.bounded.data_dependent import SIZED, SOURCES, depends_on_data
from tilewright.graph.infer import FallbackProvider, Typer
from tilewright.graph.nodes import DataDependent, Graph, Operation, Value
from tilewright.graph.ops.registry import has_trait
from tilewright.graph.ops.traits import POINTWISE
from tilewright.graph.renaming import name_outputs
from tilewright.graph.specialize import typed_subgraphs

Env = dict[Value, Value]
# Operators that run subgraphs, with data deciding which or how often.
CONTROL: dict[str, Callable[[OperatorWalk, Operation, Env], Results | None]] = {
    "If": branches.branch,
    "Loop": loops.loop,
    "Scan": loops.scan,
}
# Operators that fail on an index out of range, which they must not in a branch not taken.
INDEXED = frozenset(("Gather", "GatherElements", "GatherND"))


def bound(
    graph: Graph,
    fallback: FallbackProvider | None,
) -> Graph:
    """The graph with bounded tensors; unchanged if no extent depends on data."""
    if not depends_on_data(graph):
        return graph
    limit = memory_limit() // 2
    typer = Typer(fallback, limit, dict(graph.constants))
    env: Env = {v: v for v in (*graph.constants, *graph.inputs)}
    walk = OperatorWalk(typer, (v.name for v in env))
    walk.run(graph.operations, env)
    outputs = tuple(walk.builder.trimmed(env[v]) for v in graph.outputs)
    used = {v for op in typer.operations for v in op.reads} | set(outputs)
    known = {v: a for v, a in typer.known.items() if v in used}
    made = replace(
        graph,
        outputs=outputs,
        operations=tuple(typer.operations),
        constants=known,
    )
    return name_outputs(made, [v.name for v in graph.outputs])


class OperatorWalk:
    """Applies the operators of a graph in order. names: those already in use."""

    def __init__(
        self,
        typer: Typer,
        names: Iterable[str],
    ) -> None:
        self.builder = BoundedBuilder(typer)
        self.context = BoundedContext(self.builder, KnownContents(self.builder))
        self._names = set(names)

    def inner(self, label: str) -> OperatorWalk:
        """A Walk for a subgraph, with its own names for new values."""
        made = copy(self)
        prefix = self.name(f"{label}/{self.builder.prefix}")
        made.builder = self.builder.inner(prefix)
        made.context = BoundedContext(
            made.builder, self.context.contents.inner(made.builder)
        )
        return made

    def name(self, wish: str) -> str:
        """A name that no other value has."""
        return fresh(self._names, wish)

    def run(
        self,
        operations: Sequence[Operation],
        env: Env,
    ) -> None:
        """Add the operators; `env` maps old values to new ones and gains their results."""
        for op in operations:
            with placed(f"node {op.label!r}"):
                self._add(op, env)

    def _add(
        self,
        op: Operation,
        env: Env,
    ) -> None:
        draft = self._named(_with_inputs(op, env))
        found = self._bounded(draft, env)
        if found is None:
            found = self._exact(draft, env)
        for old, new in zip(op.outputs, found, strict=False):
            if old is not None and new is not None:
                env[old] = new

    def _named(
        self,
        op: Operation,
    ) -> Operation:
        """The operator with new result names, as both branches of an If may use the same names."""
        outputs = []
        for v in op.outputs:
            name = None if v is None else fresh(self._names, v.name)
            outputs.append(v if v is None or name is None else replace(v, name=name))
        return _with_outputs(op, outputs)

    def _bounded(
        self,
        op: Operation,
        env: Env,
    ) -> Results | None:
        """The operator's results by its rule; None if it has no rule or the rule does not apply."""
        if op.subgraphs:
            return self._controlled(op, env)
        if any(not v.static for v in op.reads) or not self._concerned(op):
            return None
        elementwise = pointwise if has_trait(op, POINTWISE) else None
        rule = RULES.get(op.qualified, elementwise)
        try:
            found = None if rule is None else rule(self.context, op)
        except (
            MemoryLimitError
        ):  # the upper bound is too large, though the actual size may not be
            found = None
        return None if found is None else self._noted(op, found)

    def _controlled(
        self,
        op: Operation,
        env: Env,
    ) -> Results | None:
        """Control flow that runs natively; None if it cannot."""
        walker = CONTROL.get(op.qualified)
        try:
            return None if walker is None else walker(self, op, env)
        except (MemoryLimitError, DataDependent):
            return None

    def _concerned(
        self,
        op: Operation,
    ) -> bool:
        """Whether an operand or the result is open, or it is guarded against failure."""
        b = self.builder
        sizes = [
            op.inputs[n] for n in SIZED.get(op.qualified, ()) if n < len(op.inputs)
        ]
        return (
            any(v in b.extents for v in op.reads)
            or op.qualified in SOURCES
            or any(v is not None and v not in b.typer.known for v in sizes)
            or (b.guard is not None and op.qualified in INDEXED)
        )

    def _exact(
        self,
        op: Operation,
        env: Env,
    ) -> Results:
        """Apply the operator to tensors of their true shapes."""
        swap = {v: self.builder.trimmed(v) for v in op.inputs if v is not None}
        draft = _with_inputs(op, swap)
        if op.subgraphs:
            scope = {v: self.builder.trimmed(new) for v, new in env.items()}
            draft = typed_subgraphs(draft, self.builder.typer, scope)
        found = list(self.builder.typer.apply(draft))
        return self._noted(draft, found)

    def _noted(
        self,
        op: Operation,
        found: Results,
    ) -> Results:
        """The results, replaced by constants if every run computes the same numbers."""
        contents = self.context.contents
        contents.note(_with_outputs(op, found))
        return [None if v is None else contents.settled(v) for v in found]


def pointwise(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """Elementwise operators: elements past the counts do not affect the others."""
    if op.version < 7 and len(op.inputs) > 1:
        return None
    given = [ctx.builder.dims(v) for v in op.inputs if v is not None]
    dims = shapes.broadcast(given)
    return None if dims is None else ctx.on_memory(op, dims)


def _with_inputs(
    op: Operation,
    env: Mapping[Value, Value],
) -> Operation:
    inputs = tuple(None if v is None else env.get(v, v) for v in op.inputs)
    return replace(op, inputs=inputs)


def _with_outputs(
    op: Operation,
    outputs: Sequence[Value | None],
) -> Operation:
    return replace(op, outputs=tuple(outputs))
