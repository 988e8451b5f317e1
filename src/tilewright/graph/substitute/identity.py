"""Digests of graphs by what they compute, independent of inner names and list orders.

A value's digest covers its operator and its operands' digests, sorted for commutative operators. A
graph's digest covers its outputs and all its operations, with multiplicity: computing a value twice
differs from computing it once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.registry import Trait, has_trait

# Constants up to this many elements contribute their elements even if only types count, as they are
# shapes, axes and paddings.
SMALL: Final = 64


class Digests:
    """Digests of graphs that share most of their operations, which are cached.

    contents: whether elements of constants and names of inputs count; otherwise large constants of
    one type are equal, and inputs are distinguished by their positions.
    """

    def __init__(self, contents: bool = True) -> None:
        self._contents = contents
        self._arrays: dict[Value, bytes] = {}
        self._operators: dict[Operation, bytes] = {}

    def graph(self, graph: Graph, outer: Mapping[Value, bytes] | None = None) -> bytes:
        """The digest of a graph. outer: digests of the values around a subgraph."""
        found = dict(outer or {})
        for n, v in enumerate(graph.inputs):
            name = v.name if self._contents and outer is None else str(n)
            found[v] = _hash(b"input", name.encode(), v.type_text.encode())
        found |= {v: self.array(v, a) for v, a in graph.constants.items()}
        made = [self._operation(op, found) for op in graph.operations]
        outputs = [
            found[v] + (v.name.encode() if self._contents and outer is None else b"")
            for v in graph.outputs
        ]
        return _hash(b"graph", *outputs, b"|", *sorted(made))

    def _operation(self, op: Operation, found: dict[Value, bytes]) -> bytes:
        operands = [b"" if v is None else found[v] for v in op.inputs]
        if len(operands) == 2 and has_trait(op, Trait.COMMUTATIVE):
            operands.sort()
        inner = [self.graph(g, found) for g in op.subgraphs]
        whole = _hash(self.operator(op), *operands, b"|", *inner)
        for n, v in enumerate(op.outputs):
            if v is not None:
                found[v] = _hash(whole, b"%d" % n)
        return whole

    def operator(self, op: Operation) -> bytes:
        """The digest of an operator with its attributes and result types, without operands."""
        if op not in self._operators:
            plain = (
                f"{name}={_text(a)}"
                for name, a in sorted(op.attributes.items())
                if not isinstance(a, Graph)
            )
            types = (v.type_text if v is not None else "_" for v in op.outputs)
            parts = (op.qualified, str(op.version), *plain, *types)
            self._operators[op] = _hash(*(p.encode() for p in parts))
        return self._operators[op]

    def array(self, v: Value, array: np.ndarray[Any, Any]) -> bytes:
        """The digest of a constant."""
        if v not in self._arrays:
            parts = [str(array.dtype).encode(), str(array.shape).encode()]
            if self._contents or array.size <= SMALL:
                parts.append(_bytes(array))
            self._arrays[v] = _hash(b"constant", *parts)
        return self._arrays[v]


def _text(attribute: Any) -> str:
    if isinstance(attribute, np.ndarray):
        return f"{attribute.dtype}{attribute.shape}{_bytes(attribute).hex()}"
    return repr(attribute)


def _bytes(array: np.ndarray[Any, Any]) -> bytes:
    if array.dtype.hasobject:
        return repr(array.tolist()).encode()
    return array.tobytes()


def _hash(*parts: bytes) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(b"%d:" % len(part))
        found.update(part)
    return found.digest()


def digest(graph: Graph) -> str:
    """The digest of one graph, in hexadecimal."""
    return Digests().graph(graph).hex()


def names_of(operations: Iterable[Operation]) -> tuple[str, ...]:
    """Operations by their first results, whose names are unique."""
    return tuple(next(v.name for v in op.writes) for op in operations)
