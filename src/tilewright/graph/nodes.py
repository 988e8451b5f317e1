"""The graph: operators over tensors, in SSA form, with the ONNX operator vocabulary.

    Graph     = Graph(name, inputs, outputs, operations, constants)
    Operation = Operation(op_type, domain, version, inputs, outputs, attributes, name)
    Value     = Value(name, dtype, shape, kind)         a symbol, compared by identity

Everything is immutable: a pass returns a new graph and shares what it did not change. A subgraph
(of `If`, `Loop`, `Scan`) is a Graph in an operation's attributes; it may read values of the graphs
around it (`Graph.captured`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeGuard

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType, dtype_of
from tilewright.base.text import plural
from tilewright.runtime.conditions import ExtentCondition
from tilewright.runtime.model import known_or_named
from tilewright.runtime.nesting import ArgumentNesting

Dim = int | str | None
Shape = tuple[Dim, ...]
KINDS = ("tensor", "sequence", "optional", "map")  # nested: "optional.sequence"


_INT: Final = frozenset((int,))


def _are_numbers(shape: Shape) -> TypeGuard[tuple[int, ...]]:
    return _INT.issuperset(map(type, shape)) or all(isinstance(d, int) for d in shape)


class DataDependent(ValueError):
    """A requested type depends on a value that is not yet known."""


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """A value that operations read and write.

    dtype: of the elements (None: unknown). shape: extents; a name is a symbolic extent, None an
    unknown one; the whole shape is None if not even the rank is known. kind: one of KINDS.
    """

    name: str
    dtype: DType | None = None
    shape: Shape | None = None
    kind: str = "tensor"

    @property
    def static(self) -> bool:
        """Whether it is a tensor of known dtype and extents."""
        return (
            self.kind == "tensor"
            and self.dtype is not None
            and self.shape is not None
            and _are_numbers(self.shape)
        )

    @property
    def extents(self) -> tuple[int, ...]:
        """The shape if it is static. Raises DataDependent if it is not."""
        if self.shape is None or not _are_numbers(self.shape):
            raise DataDependent(f"{self} has no static shape")
        return tuple(map(int, self.shape))

    def __repr__(self) -> str:
        return f"{self.name}: {self.type_text}"

    @property
    def type_text(self) -> str:
        """`float32[1, N, ?]`; `sequence(float32)` for types other than tensors."""
        element = "?" if self.dtype is None else str(self.dtype)
        if self.shape is None:
            text = element
        else:
            text = f"{element}[{', '.join('?' if d is None else str(d) for d in self.shape)}]"
        for part in reversed(self.kind.split(".")):
            text = text if part == "tensor" else f"{part}({text})"
        return text


@dataclass(frozen=True, eq=False)
class Operation:
    """One application of an operator.

    version: the since_version of the operator's definition. inputs: None marks an omitted optional
    input; likewise for outputs. attributes: Python ints, floats, strings, lists of them, NumPy
    arrays, or Graphs.
    """

    op_type: str
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""
    version: int = 1
    name: str = ""

    def __post_init__(self) -> None:
        if self.domain == "ai.onnx":  # its other name
            object.__setattr__(self, "domain", "")

    @property
    def qualified(self) -> str:
        """The operator with its domain, `com.acme::Foo`; ONNX's own without one.

        Compare this to identify an operator: by `op_type` alone, another domain's `Identity` would
        be mistaken for ONNX's.
        """
        return f"{self.domain}::{self.op_type}" if self.domain else self.op_type

    @property
    def label(self) -> str:
        """The name of this node in messages: its own, or its first output's."""
        if self.name:
            return self.name
        first = next((o.name for o in self.outputs if o is not None), "?")
        return f"{self.op_type} -> {first}"

    def attr(self, name: str, default: Any = None) -> Any:
        """The attribute, or a default."""
        return self.attributes.get(name, default)

    @cached_property
    def subgraphs(self) -> tuple[Graph, ...]:
        """The Graphs among the attributes."""
        return tuple(v for v in self.attributes.values() if isinstance(v, Graph))

    @cached_property
    def reads(self) -> tuple[Value, ...]:
        """Every value needed to run it, including those its subgraphs capture, each once."""
        found = dict.fromkeys(v for v in self.inputs if v is not None)
        for g in self.subgraphs:
            found |= dict.fromkeys(g.captured)
        return tuple(found)

    @cached_property
    def writes(self) -> tuple[Value, ...]:
        """The outputs that are present."""
        return tuple(v for v in self.outputs if v is not None)

    def __repr__(self) -> str:
        from tilewright.graph.printer import show_operation

        return show_operation(self)


class ExtentRange(NamedTuple):
    """The extents of a symbolic dimension for which a model is made: multiples of `step`.

    most: None without a greatest one. accepted: the least extent that calls may have; less than
    `least` where the importer supposed that one without need.
    """

    least: int
    most: int | None
    step: int
    accepted: int


@dataclass(frozen=True, eq=False)
class Graph:
    """A model or a subgraph. operations: in an order in which they can run.

    constants: known values with their arrays, which are read-only. Every operand is an input, a
    constant, or the output of an earlier operation (or, in a subgraph, captured). files: the
    external files that constants were read from, as the model names them. defaults: inputs for
    which the model has values, which are constants here. origin: a digest of what was read, if
    available. nesting: how the caller sees inputs and outputs nested; valid for exactly these
    inputs and outputs. ranges: of symbolic dimensions that the model limits. conditions: what else
    holds of these where the model is right. warnings: what its import warned of. declared: by
    output, the names that the model gives its extents; they are shown, and mean nothing.
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    operations: tuple[Operation, ...]
    constants: Mapping[Value, np.ndarray[Any, Any]] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    defaults: tuple[Value, ...] = ()
    origin: str = ""
    nesting: ArgumentNesting | None = None
    ranges: Mapping[str, ExtentRange] = field(default_factory=dict)
    conditions: tuple[ExtentCondition, ...] = ()
    warnings: tuple[str, ...] = ()
    declared: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)

    @cached_property
    def producers(self) -> Mapping[Value, Operation]:
        """The operation that writes each value."""
        return {v: op for op in self.operations for v in op.writes}

    @cached_property
    def readers(self) -> Mapping[Value, tuple[Operation, ...]]:
        """The operations that read each value, in order, each once."""
        found: dict[Value, list[Operation]] = {}
        for op in self.operations:
            for v in op.reads:
                found.setdefault(v, []).append(op)
        return {v: tuple(ops) for v, ops in found.items()}

    @cached_property
    def captured(self) -> tuple[Value, ...]:
        """Values from enclosing graphs that are read here."""
        own = {*self.inputs, *self.constants, *self.producers}
        reads = dict.fromkeys(v for op in self.operations for v in op.reads)
        reads |= dict.fromkeys(self.outputs)
        return tuple(v for v in reads if v not in own)

    @property
    def values(self) -> tuple[Value, ...]:
        """Every value defined here: inputs, constants, results."""
        return (*self.inputs, *self.constants, *self.producers)

    @property
    def shown_outputs(self) -> tuple[Value, ...]:
        """The outputs to be shown: unknown extents have the names that the model gives them."""
        return tuple(
            replace(v, shape=known_or_named(v.shape, self.declared.get(v.name)))
            for v in self.outputs
        )

    def producer(self, value: Value) -> Operation | None:
        """The operation that writes `value`; None for inputs and constants."""
        return self.producers.get(value)

    def users(self, value: Value) -> tuple[Operation, ...]:
        """The operations that read `value`."""
        return self.readers.get(value, ())

    def with_operations(
        self,
        operations: Sequence[Operation],
        constants: Mapping[Value, np.ndarray[Any, Any]] | None = None,
        outputs: Sequence[Value] | None = None,
    ) -> Graph:
        """The same interface around other operations; unused constants are dropped."""
        outs = self.outputs if outputs is None else tuple(outputs)
        pool = self.constants if constants is None else constants
        used = {v for op in operations for v in op.reads} | set(outs)
        kept = {v: a for v, a in pool.items() if v in used}
        return replace(
            self,
            operations=tuple(operations),
            constants=kept,
            outputs=outs,
        )

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, {plural(len(self.operations), 'operation')})"

    def __str__(self) -> str:
        from tilewright.graph.printer import show

        return show(self)


def constant(name: str, array: np.ndarray[Any, Any]) -> Value:
    """A value with the type of `array`, to be used as a key of `Graph.constants`."""
    return Value(
        name,
        dtype_of(array.dtype),
        tuple(int(d) for d in array.shape),
    )
