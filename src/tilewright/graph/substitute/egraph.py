"""An e-graph of a Graph: classes of equal values, and every operation that computes them.

    class   equal values; one of them represents all, with its array if it is known
    node    an operation on classes; equal operations on the same classes are one node, and an
            operation of several results is one node that computes several classes

(Nelson and Oppen 1980; Willsey et al., POPL 2021.) `union` declares two classes equal; `rebuild`
then merges nodes that have become equal, and in turn their results.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.registry import Trait, has_trait
from tilewright.graph.substitute.identity import Digests

Array = np.ndarray[Any, Any]
Class = int


@dataclass(eq=False)
class ENode:
    """An operation on classes.

    number: its position in the order of creation. operands, writes: by position. reads: everything
    that it needs. rule, origin: the rule that made it and the nodes that the rule matched; empty
    for nodes of the first graph.
    """

    number: int
    operation: Operation
    operands: tuple[Class | None, ...]
    reads: tuple[Class, ...]
    writes: tuple[Class | None, ...]
    rule: str = ""
    origin: tuple[ENode, ...] = ()


class EGraph:
    """Classes and nodes, initially those of a graph.

    outputs: the classes of the graph's outputs. equal: the rules that made two classes equal.
    """

    def __init__(self, graph: Graph) -> None:
        self.nodes: list[ENode] = []
        self.constants: dict[Class, Array] = {}
        self.equal: set[str] = set()
        self._values: list[Value] = []  # by class
        self._parents: list[Class] = []
        self._places: dict[Value, Class] = {}
        self._arrays: dict[bytes, Class] = {}
        self._known: dict[Hashable, ENode] = {}
        self._digests = Digests()
        self._made = 0
        self._inputs = [self._new(v) for v in graph.inputs]
        self.add(graph.operations, graph.constants)
        self.outputs = tuple(self.place(v, graph.constants) for v in graph.outputs)

    def find(self, c: Class) -> Class:
        """The class that a class was merged into."""
        while self._parents[c] != c:
            self._parents[c] = self._parents[self._parents[c]]
            c = self._parents[c]
        return c

    def value(self, c: Class) -> Value:
        """The representative of a class."""
        return self._values[self.find(c)]

    def standing(self) -> dict[Value, Class]:
        """The classes by their representatives."""
        found = enumerate(self._values)
        return {v: c for c, v in found if self._parents[c] == c}

    def place(self, v: Value, constants: Mapping[Value, Array]) -> Class:
        """The class of an existing value or of a constant, which may be new."""
        if v not in constants:
            return self.find(self._places[v])
        key = self._digests.array(v, constants[v])
        if key not in self._arrays:
            self._arrays[key] = c = self._new(v)
            self.constants[c] = constants[v]
        return self.find(self._arrays[key])

    def lookup(
        self,
        op: Operation,
        places: Mapping[Value, Class],
        constants: Mapping[Value, Array],
    ) -> ENode | None:
        """The node of an operation of another graph; None if there is none.

        places: classes of that graph's values.
        """
        found: dict[Value, Class] = {}
        for v in op.reads:
            place = places.get(v)
            if v in constants:
                place = self._arrays.get(self._digests.array(v, constants[v]))
            if place is None:
                return None
            found[v] = self.find(place)
        return self._known.get(self._key(op, _of(op.inputs, found)))

    def add(
        self,
        operations: Iterable[Operation],
        constants: Mapping[Value, Array],
        rule: str = "",
        origin: tuple[ENode, ...] = (),
    ) -> None:
        """Add operations in order, on existing values and constants."""
        for op in operations:
            found = {v: self.place(v, constants) for v in op.reads}
            operands = _of(op.inputs, found)
            key = self._key(op, operands)
            if key in self._known:
                pairs = zip(op.outputs, self._known[key].writes, strict=True)
                same = {v: c for v, c in pairs if v is not None and c is not None}
                self._places.update(same)
                continue
            writes = tuple(None if v is None else self._new(v) for v in op.outputs)
            reads = tuple(found.values())
            node = ENode(self._made, op, operands, reads, writes, rule, origin)
            self._made += 1
            self._known[key] = node
            self.nodes.append(node)

    def union(self, a: Class, b: Class, rule: str = "") -> bool:
        """Declare two classes equal; returns whether that is new. The older one represents both."""
        a, b = sorted((self.find(a), self.find(b)))
        if a == b:
            return False
        self._parents[b] = a
        if b in self.constants:
            self.constants.setdefault(a, self.constants[b])
        if rule:
            self.equal.add(rule)
        return True

    def rebuild(self) -> None:
        """Merge nodes that have become equal, until no two are."""
        changed = True
        while changed:
            changed = False
            kept: dict[Hashable, ENode] = {}
            for node in self.nodes:
                node.operands = self._found(node.operands)
                node.writes = self._found(node.writes)
                node.reads = tuple(map(self.find, node.reads))
                first = kept.setdefault(self._key(node.operation, node.operands), node)
                for a, b in zip(first.writes, node.writes, strict=True):
                    if a is not None and b is not None:
                        changed = self.union(a, b) or changed
            self._known = kept
            self.nodes = list(kept.values())

    def kept(self, node: ENode) -> ENode:
        """The node that a node was merged into."""
        return self._known[self._key(node.operation, self._found(node.operands))]

    def operation(self, node: ENode) -> Operation:
        """The operation of a node, on the representatives of its classes."""
        op = node.operation
        inputs = self._standing(node.operands)
        outputs = self._standing(node.writes)
        if inputs == op.inputs and outputs == op.outputs:
            return op
        return replace(op, inputs=inputs, outputs=outputs)

    @property
    def given(self) -> set[Class]:
        """The classes that need no node: those of inputs and constants."""
        return {self.find(c) for c in (*self._inputs, *self.constants)}

    def known(self) -> dict[Value, Array]:
        """The arrays of known classes, by their representatives."""
        return {self.value(c): a for c, a in self.constants.items()}

    def _key(self, op: Operation, operands: Sequence[Class | None]) -> Hashable:
        """Equal for operations that are the same node."""
        if op.subgraphs or has_trait(op, Trait.IMPURE):
            return op
        places = [-1 if c is None else c for c in operands]
        if len(places) == 2 and has_trait(op, Trait.COMMUTATIVE):
            places.sort()
        return (self._digests.operator(op), *places)

    def _new(self, v: Value) -> Class:
        c = len(self._parents)
        self._parents.append(c)
        self._values.append(v)
        self._places[v] = c
        return c

    def _found(self, classes: Iterable[Class | None]) -> tuple[Class | None, ...]:
        return tuple(None if c is None else self.find(c) for c in classes)

    def _standing(self, classes: Iterable[Class | None]) -> tuple[Value | None, ...]:
        return tuple(None if c is None else self.value(c) for c in classes)


def _of(
    values: Iterable[Value | None], places: Mapping[Value, Class]
) -> tuple[Class | None, ...]:
    return tuple(None if v is None else places[v] for v in values)
