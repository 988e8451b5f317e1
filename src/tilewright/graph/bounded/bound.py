"""Graphs with extents that depend on data, as graphs of bounded tensors with counts.

    NonZero(x): int64[1, ?]   becomes   places: int64[1, 900], count: int64 = NonZero'(x)

Every tensor of an open extent is memory for the most that it can be, and a count that a run
computes. An operator on it runs on the memory, where that gives the right elements before the
count; what goes along an open axis (sums, products, softmax) sees the identity after it; what
reads at computed places has them checked against the count; what asks for a shape gets the
counts. What is after a count is not defined, and never read. Outputs of the model are cut to
their counts (`Trim`). All shapes are static then: the graph is native code, in one call.

A rule says what an operator does with bounded operands (`context.RULES`). One without a rule, or
whose rule does not hold, gets tensors of their true shape, as a host fallback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace

from tilewright.base.errors import MemoryLimitError, TilewrightError
from tilewright.base.memory import memory_limit
from tilewright.base.names import fresh
from tilewright.graph.bounded import branches, indices, loops, parts, shapes, sums  # noqa: F401
from tilewright.graph.bounded.builder import BoundedBuilder
from tilewright.graph.bounded.contents import Contents
from tilewright.graph.bounded.context import RULES, BoundedContext, Results
from tilewright.graph.infer import FallbackProvider, Typer, typed_subgraphs
from tilewright.graph.nodes import DataDependent, Graph, Operation, Value
from tilewright.graph.ops.registry import has_trait
from tilewright.graph.ops.traits import POINTWISE
from tilewright.graph.renaming import name_outputs

Env = dict[Value, Value]
# Operators whose results are open though their operands need not be.
SOURCES = frozenset(("Compress", "NonMaxSuppression", "NonZero", "Unique"))
# Operators that a number from a run can size.
SIZED = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Slice": (1, 2),
    "TopK": (1,),
}
# Where an extent that depends on data comes from.
STARTS = SOURCES | SIZED.keys()
# What runs other operators, or how often, by data.
CONTROL: dict[str, Callable[[Walk, Operation, Env], Results | None]] = {
    "If": branches.branch,
    "Loop": loops.loop,
    "Scan": loops.scan,
}
# Operators that fail on an index out of range, which a branch not taken must not.
INDEXED = frozenset(("Gather", "GatherElements", "GatherND"))


def bound(
    graph: Graph,
    fallback: FallbackProvider | None,
) -> Graph:
    """The graph with bounded tensors; itself where no extent depends on data."""
    if not all(v.static for v in graph.inputs) or not any(
        op.qualified in CONTROL
        or (op.qualified in STARTS and not all(v.static for v in op.writes))
        for op in graph.operations
    ):
        return graph
    limit = memory_limit() // 2
    typer = Typer(fallback, limit, dict(graph.constants))
    env: Env = {v: v for v in (*graph.constants, *graph.inputs)}
    walk = Walk(typer, (v.name for v in env))
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


class Walk:
    """Applies the operators of a graph in order; names: those that are taken."""

    def __init__(
        self,
        typer: Typer,
        names: Iterable[str],
    ) -> None:
        self.builder = BoundedBuilder(typer)
        self.context = BoundedContext(self.builder, Contents(self.builder))
        self._names = set(names)

    def inner(self, label: str) -> Walk:
        """What walks a subgraph, with its own names for what it makes."""
        made = copy(self)
        prefix = self.name(f"{label}/{self.builder.prefix}")
        made.builder = self.builder.inner(prefix)
        made.context = BoundedContext(
            made.builder, self.context.contents.inner(made.builder)
        )
        return made

    def name(self, wish: str) -> str:
        """A name that nothing has."""
        return fresh(self._names, wish)

    def run(
        self,
        operations: Sequence[Operation],
        env: Env,
    ) -> None:
        """Add the operators; env: what each value became, those made here included."""
        for op in operations:
            try:
                self._add(op, env)
            except TilewrightError as error:
                raise error.at(f"node {op.label!r}") from error.__cause__

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
        """The operator with results of new names: both branches of an If may use the same."""
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
        """The operator by its rule; None where it has none, or the rule does not hold."""
        if op.subgraphs:
            return self._controlled(op, env)
        if any(not v.static for v in op.reads) or not self._concerned(op):
            return None
        rule = pointwise if has_trait(op, POINTWISE) else RULES.get(op.qualified)
        try:
            found = None if rule is None else rule(self.context, op)
        except MemoryLimitError:  # the most that there could be, and not what there is
            found = None
        return None if found is None else self._noted(op, found)

    def _controlled(
        self,
        op: Operation,
        env: Env,
    ) -> Results | None:
        """Control flow that runs natively; None where it cannot."""
        walker = CONTROL.get(op.qualified)
        try:
            return None if walker is None else walker(self, op, env)
        except (MemoryLimitError, DataDependent):
            return None

    def _concerned(
        self,
        op: Operation,
    ) -> bool:
        """Whether an operand or the result is open, or it is not to fail."""
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
        """The operator on tensors of their true shapes."""
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
        """The results, constants for those whose numbers every run agrees on."""
        contents = self.context.contents
        contents.note(_with_outputs(op, found))
        return [None if v is None else contents.settled(v) for v in found]


def pointwise(
    ctx: BoundedContext,
    op: Operation,
) -> Results | None:
    """Element by element: what is after the counts goes its own way."""
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
