"""Type inference, operation by operation, with the small constants that shapes depend on.

`Typer` takes operations in order and infers the dtypes and shapes of their results, by the
operator's definition or a frontend's fallback. Results that are already known (shape arithmetic on
constants, the shape of a tensor) become constants. `graph.specialize` repeats this for a graph
whose symbolic extents have been given values.
"""

from __future__ import annotations

import math
import operator
from collections import ChainMap
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from tilewright.base import limits
from tilewright.base.dtypes import DType
from tilewright.base.errors import (
    CompileError,
    MemoryLimitError,
    ModelError,
)
from tilewright.base.text import plural
from tilewright.graph import sequences
from tilewright.graph.folding import as_typed, may_fold
from tilewright.graph.nodes import (
    DataDependent,
    Operation,
    Value,
    constant,
)
from tilewright.graph.ops.errors import RULES, definition_of_node, place
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.inside import check_parts
from tilewright.graph.ops.registry import (
    Array,
    OpCall,
    definition_of,
    foreign,
    has_trait,
    native_dtype,
)
from tilewright.graph.ops.traits import DEQUANTIZES, IMPURE, LATE

MAX_BYTES = (1 << 63) - 1
FOLD_ELEMENTS = 4096  # shape arithmetic is far below; weights are far above


class FallbackProvider(Protocol):
    """Knows operators that have no definition here; supplied by a frontend."""

    def knows(self, op: Operation) -> bool:
        """Whether it has a kernel for that operator and version."""
        ...

    def infer(
        self, op: Operation, known: Mapping[Value, Array]
    ) -> Sequence[Value | None]:
        """The outputs of `op` with types filled in as far as they are known."""
        ...

    def run(self, op: Operation, arrays: Sequence[Any]) -> list[Any] | None:
        """The results on `arrays`, one per entry of `op.inputs`; None if it cannot run."""
        ...


# Whether operators are decomposed as their definitions say; asked of what takes the place of one
# operator, whether that one is.
Decomposition = bool | Callable[[Sequence[Operation]], bool]


class Typer:
    """Turns operations into typed operations and constants.

    memory_limit: bytes; a larger tensor is rejected as soon as its shape is known. fold_elements:
    maximal size of a result that is computed at compile time.
    """

    def __init__(
        self,
        fallback: FallbackProvider | None = None,
        memory_limit: int | None = None,
        known: MutableMapping[Value, Array] | None = None,
        decompose: Decomposition = True,
        fold_elements: int = FOLD_ELEMENTS,
    ) -> None:
        self.fallback = fallback
        self.fold_elements = fold_elements
        self.decompose = decompose
        self.memory_limit = memory_limit
        self.operations: list[Operation] = []
        self.known: MutableMapping[Value, Array] = {} if known is None else known
        self.sequences: MutableMapping[Value, tuple[Value, ...]] = {}

    def inner(self) -> Typer:
        """A Typer for a subgraph: it sees the constants of this one and keeps its own."""
        inner = Typer(
            self.fallback,
            self.memory_limit,
            ChainMap({}, self.known),
            self.decompose,
            self.fold_elements,
        )
        inner.sequences = ChainMap({}, self.sequences)
        return inner

    @property
    def own(self) -> Mapping[Value, Array]:
        """The constants of this graph, without those of the graphs around it."""
        if isinstance(self.known, ChainMap):
            return self.known.maps[0]
        return self.known

    def constant(self, name: str, array: Array) -> Value:
        """Add a constant."""
        value = constant(name, array)
        self.known[value] = array
        return value

    def apply(self, draft: Operation) -> tuple[Value | None, ...]:
        """Add `draft` with typed outputs (or constants); returns the outputs.

        Raises ModelError if the use violates the operator's rules, MemoryLimitError for a result
        that is too large.
        """
        limits.check()
        pieces = self._decomposed(draft)
        if pieces is not None:
            return pieces
        item = sequences.read(draft, self)
        if item is not None:
            return (item,)
        op = replace(draft, outputs=tuple(self._types(draft)))
        for v in op.writes:
            check_size(v, self.memory_limit, place(op))
        values = self._values(op)
        if values is None:
            self.operations.append(op)
            sequences.note(op, self)
            return op.outputs
        return tuple(
            None if v is None or a is None else self.constant(v.name, a)
            for v, a in zip(op.outputs, values, strict=True)
        )

    def _decomposed(self, op: Operation) -> tuple[Value | None, ...] | None:
        """The outputs of `op` in terms of other operators, if its definition decomposes it."""
        definition = definition_of(op) if self.decompose else None
        if definition is None or definition.decompose is None:
            return None
        types = self._types(op)
        for v in types:  # intermediate tables may be as large as the results
            if v is not None:
                check_size(v, self.memory_limit, place(op))
        fragment = Fragment(op.name or next(v.name for v in op.writes), self.known)
        try:
            with definition_of_node(op):
                results = definition.decompose(OpCall(op, self.known), fragment)
        except DataDependent:
            return None
        if results is None or not self._accepts(fragment):
            return None
        check_parts(op, types, results)
        env = self.add(
            self._renamed(fragment.operations, results, op), fragment.constants
        )
        names = {v.name: v for v in env.values()}
        return tuple(
            None if v is None else names.get(v.name, env.get(r, r))
            for v, r in zip(op.outputs, results, strict=False)
        )

    def _accepts(self, fragment: Fragment) -> bool:
        """Whether what a decomposition made takes the place of the operator."""
        if callable(self.decompose):
            return self.decompose(fragment.operations)
        return True

    def add(
        self, pieces: Sequence[Operation], constants: Mapping[Value, Array]
    ) -> dict[Value, Value]:
        """Add the operations of a Fragment; returns what each of their results became."""
        env: dict[Value, Value] = {}
        self.known.update(constants)
        for piece in pieces:
            draft = replace(
                piece,
                inputs=tuple(
                    None if v is None else env.get(v, v) for v in piece.inputs
                ),
            )
            for old, new in zip(piece.outputs, self.apply(draft), strict=True):
                if old is not None and new is not None:
                    env[old] = new
        return env

    @staticmethod
    def _renamed(
        pieces: Sequence[Operation],
        results: Sequence[Value],
        op: Operation,
    ) -> Sequence[Operation]:
        """The pieces, with the results renamed to the outputs of `op`."""
        place = {
            r: v for r, v in zip(results, op.outputs, strict=False) if v is not None
        }

        def new(v: Value | None) -> Value | None:
            return None if v is None else place.get(v, v)

        return [
            replace(
                p, inputs=tuple(map(new, p.inputs)), outputs=tuple(map(new, p.outputs))
            )
            for p in pieces
        ]

    def _types(self, op: Operation) -> Sequence[Value | None]:
        definition = definition_of(op)
        tensors = all(v.kind == "tensor" for v in op.reads)
        if definition is not None and tensors:
            try:
                says = "infer of its definition fails" if foreign(definition) else RULES
                with definition_of_node(op, says):
                    types = list(definition.infer(OpCall(op, self.known)))
            except DataDependent:
                types = None
            if types is not None:
                return typed(op, types)
        if self.fallback is not None:
            with definition_of_node(op):
                return self.fallback.infer(op, self.known)
        return op.outputs

    def _values(self, op: Operation) -> list[Array | None] | None:
        """The results if they are known now, small, and of the types of `op`."""
        definition = definition_of(op)
        call = OpCall(op, self.known)
        if definition is not None and definition.static_value is not None:
            with definition_of_node(op):
                found = definition.static_value(call)
            if found is not None:
                return as_typed(op, found)
        if has_trait(op, IMPURE | DEQUANTIZES | LATE) or op.subgraphs or not op.reads:
            return None
        if not all(v in self.known for v in op.reads):
            return None
        if not all(
            v.static and math.prod(v.extents) <= self.fold_elements for v in op.writes
        ):
            return None
        if not may_fold(op, self.known):
            return None
        arrays = [None if v is None else self.known[v] for v in op.inputs]
        results = run_operation(op, arrays, self.fallback)
        return None if results is None else as_typed(op, results)


def run_operation(
    op: Operation,
    arrays: Sequence[Any],
    fallback: FallbackProvider | None,
) -> list[Any] | None:
    """Run `op` by its definition's reference, else by the fallback; None if neither exists.

    Results without elements are made as they are typed: references may divide by an extent of 0.
    """
    if op.writes and not op.subgraphs and all(map(_has_no_elements, op.writes)):
        return [v if v is None else np.zeros(v.extents, _numpy(v)) for v in op.outputs]
    definition = definition_of(op)
    if definition is not None and definition.reference is not None:
        try:
            with definition_of_node(op), np.errstate(all="ignore"):
                found = definition.reference(OpCall(op), *arrays)
        except DataDependent:
            found = None
        if found is not None:
            return _arrays(found)
    if fallback is None:
        return None
    with definition_of_node(op):
        found = fallback.run(op, arrays)
    return None if found is None else _arrays(found)


def _has_no_elements(v: Value) -> bool:
    return v.kind == "tensor" and v.static and native_dtype(v.dtype) and 0 in v.extents


def _numpy(v: Value) -> np.dtype[Any]:
    assert v.dtype is not None
    return np.dtype(v.dtype.numpy)


def _arrays(results: Sequence[Any]) -> list[Any]:
    """NumPy returns scalars for rank 0, but operators take arrays."""
    return [np.asarray(r) if isinstance(r, np.generic) else r for r in results]


def typed(op: Operation, types: Sequence[Any]) -> list[Value | None]:
    """The outputs of `op` with the types from its definition's `infer`.

    Raises CompileError if these are not one (dtype, shape) per output.
    """
    wanted = len(op.outputs)
    if len(types) < wanted:
        given = plural(len(types), "type")
        those = plural(wanted, "output")
        raise _bad_types(op, f"gives {given} for {those}")
    found: list[Value | None] = []
    for n, (v, given) in enumerate(zip(op.outputs, types, strict=False)):
        try:
            dtype, shape = given
            extents = None if shape is None else tuple(map(_extent, shape))
        except (TypeError, ValueError):
            raise _bad_types(op, f"gives {given!r} for output {n}") from None
        if not isinstance(dtype, DType):
            raise _bad_types(op, f"gives {dtype!r} as the element type of output {n}")
        found.append(None if v is None else Value(v.name, dtype, extents))
    return found


def _extent(extent: Any) -> int | str | None:
    if extent is None or isinstance(extent, str):
        return extent
    return operator.index(extent)


def _bad_types(op: Operation, what: str) -> CompileError:
    return CompileError(
        f"infer of its definition {what}",
        code="TW-DEFINITION",
        where=place(op),
        hint="Let it return one pair (dtype, shape) per output, the shape a tuple of integers",
    )


def check_size(
    value: Value,
    limit: int | None,
    where: str,
) -> None:
    """Raise MemoryLimitError if `value` alone needs more than `limit` bytes.

    For a tensor without elements, the other extents count: nothing can address them beyond 64 bits.
    Raises ModelError for a negative extent.
    """
    if not value.static or value.dtype is None:
        return
    if any(d < 0 for d in value.extents):
        raise ModelError(
            f"tensor {value.name!r} would have the shape {list(value.extents)}",
            where=where,
        )
    size = math.prod(value.extents) * value.dtype.itemsize
    reach = math.prod(d for d in value.extents if d) * value.dtype.itemsize
    if (limit is not None and size > limit) or reach > MAX_BYTES:
        most = MAX_BYTES if size == 0 or limit is None else limit
        raise MemoryLimitError(
            f"tensor {value.name!r} ({value.type_text}) needs {max(size, reach):,} bytes, over "
            f"the memory limit of {most:,} bytes",
            where=where,
            hint=limits.MORE_MEMORY,
        )
