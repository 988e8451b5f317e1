"""Bodies of control flow as closed graphs of bounded tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tilewright.base.dataclass import dataclass
from tilewright.expr.nodes import Buffer
from tilewright.graph.bounded.data_dependent import CLOSED
from tilewright.graph.bounded.extents import Dims
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.passes.decompose import decompose, native_program
from tilewright.graph.renaming import rewire

if TYPE_CHECKING:
    from tilewright.graph.bounded.bound import Env, OperatorWalk


@dataclass(eq=False)
class Body:
    """A subgraph that is being turned into a closed graph.

    walk: applies its operators. inputs: its inputs so far. env: maps the subgraph's values to new
    ones.
    """

    walk: OperatorWalk
    inputs: list[Value]
    env: Env

    def run(self, graph: Graph) -> list[Value]:
        """Add the operators of a subgraph whose inputs are in `env`; returns its outputs."""
        for v, array in graph.constants.items():
            self.walk.builder.typer.known[v] = array
            self.env[v] = v
        self.walk.run(graph.operations, self.env)
        return [self.env.get(v, v) for v in graph.outputs]

    def input(self, name: str, like: Value, dims: Dims | None = None) -> Value:
        """Add an input with the type of another value's memory."""
        made = replace(like, name=self.walk.name(name))
        self.inputs.append(made)
        return made if dims is None else self.walk.builder.sized(made, dims)

    def read(self, outputs: Iterable[Value]) -> list[Value]:
        """The values from enclosing graphs that the body or its outputs use."""
        operations = self.walk.builder.typer.operations
        own = {*self.inputs, *(v for op in operations for v in op.writes)}
        reads = dict.fromkeys(v for op in operations for v in op.reads)
        reads |= dict.fromkeys(outputs)
        return [v for v in reads if v not in own]

    def closed(
        self, name: str, outputs: Sequence[Value], taken: Sequence[Value]
    ) -> Graph | None:
        """The graph with `taken` as further inputs; None unless all of it has native code."""
        known = self.walk.builder.typer.known
        if not all(v.static for v in (*self.inputs, *outputs, *taken)):
            return None
        constants = {v: known[v] for v in self.read(outputs) if v in known}
        swap = {v: replace(v, name=self.walk.name(v.name)) for v in taken}
        made = Graph(
            name,
            (*self.inputs, *taken),
            tuple(outputs),
            tuple(self.walk.builder.typer.operations),
            constants,
        )
        return rewire(made, swap) if is_native(made) else None

    def taken(self, outputs: Iterable[Value]) -> list[Value]:
        """The values that it reads from enclosing graphs, except constants."""
        known = self.walk.builder.typer.known
        return [v for v in self.read(outputs) if v not in known]


def is_native(graph: Graph) -> bool:
    """Whether every operator has native code."""
    if any(op.subgraphs and op.qualified not in CLOSED for op in graph.operations):
        return False
    graph = decompose(graph)
    values = [v for v in graph.values if v.static]
    buffers = {v: Buffer(v.name, v.extents, v.dtype) for v in values if v.dtype}
    return all(
        op.qualified in CLOSED
        or _empty(op)
        or native_program(op, graph.constants, buffers) is not None
        for op in graph.operations
    )


def _empty(op: Operation) -> bool:
    """Whether its results have no elements, so that nothing computes them."""
    return all(v.static and 0 in v.extents for v in op.writes)
