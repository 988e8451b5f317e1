"""Matching patterns against a graph, and the bindings of a match."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.registry import Array, Trait, has_trait
from tilewright.graph.rules.patterns import (
    Apply,
    Attribute,
    Either,
    LeftOut,
    Maybe,
    Number,
    Pattern,
    RuleResult,
    Tensor,
)

Bound = Mapping[Any, Any]


@dataclass(frozen=True, eq=False)
class Match:
    """A place where a pattern matches. root: the operation to replace.

    also: further operations that are replaced with it, such as the siblings in a merge of products.
    kept: values that a condition has computed and a replacement needs again.
    """

    graph: Graph
    root: Operation
    bound: Bound
    kept: dict[Any, Any] = field(default_factory=dict)
    also: tuple[Operation, ...] = ()

    def __getitem__(self, part: Tensor) -> Value:
        """The value of a tensor. Raises KeyError for an omitted operand."""
        found = self.bound[part]
        if found is None:
            raise KeyError(f"{part} is left out")
        value: Value = found
        return value

    def get(self, part: Tensor) -> Value | None:
        """The value of a tensor; None if it is omitted."""
        return self.bound.get(part)

    def array(self, part: Tensor) -> Array:
        """The elements of a known tensor."""
        return self.graph.constants[self[part]]

    def known(self, part: Tensor) -> Array | None:
        """The elements of a tensor; None if they are unknown or it is omitted."""
        value = self.get(part)
        if value is None:
            return None
        return self.graph.constants.get(value)

    def attribute(self, part: Attribute) -> Any:
        """An attribute, or its default."""
        return self.bound[part]

    def operation(self, part: Apply) -> Operation:
        """The operation that matches a part of the pattern."""
        found: Operation = self.bound[part]
        return found

    def has(self, part: Apply) -> bool:
        """Whether this part of the pattern, one of several forms, matched."""
        return part in self.bound

    @property
    def result(self) -> Value:
        """The result of the root."""
        found = self.root.outputs[0]
        assert found is not None
        return found

    @property
    def results(self) -> tuple[Value, ...]:
        """The replaced values: the results of the root, then those of the others."""
        return tuple(v for op in (self.root, *self.also) for v in op.writes)

    @property
    def operations(self) -> frozenset[Operation]:
        """All matched operations."""
        inner = (v for v in self.bound.values() if isinstance(v, Operation))
        return frozenset([self.root, *self.also, *inner])


def matches(
    pattern: Apply,
    graph: Graph,
    root: Operation,
) -> Iterator[Match]:
    """Every way in which `pattern` matches `root`, of which only the first result may be used."""
    if any(v is not None for v in root.outputs[1:]) or root.outputs[0] is None:
        return
    for bound in _operation(pattern, graph, root, {}):
        yield Match(graph, root, bound)


def _value(
    part: Any,
    graph: Graph,
    v: Value | None,
    bound: Bound,
) -> Iterator[Bound]:
    match part:
        case Maybe():
            if v is None:
                yield {**bound, part.part: None}
            else:
                yield from _value(part.part, graph, v, bound)
        case Either():
            for form in part.forms:
                yield from _value(form, graph, v, bound)
        case _ if v is not None:
            yield from _given(part, graph, v, bound)


def _given(
    part: Pattern,
    graph: Graph,
    v: Value,
    bound: Bound,
) -> Iterator[Bound]:
    match part:
        case Tensor():
            if part in bound:
                if bound[part] is v:
                    yield bound
            elif _fits(part, graph, v):
                yield {**bound, part: v}
        case Number():
            array = graph.constants.get(v)
            if (
                array is not None
                and array.dtype.kind != "O"
                and bool(np.all(array == part.value))
            ):
                yield bound
        case RuleResult():
            made = graph.producer(v)
            if made is not None and made.outputs.index(v) == part.place:
                yield from _operation(part.of, graph, made, bound)
        case Apply():
            made = graph.producer(v)
            first = made is not None and made.outputs[0] is v
            if (
                made is not None
                and first
                and (not part.read_once or _read_once(graph, v))
            ):
                yield from _operation(part, graph, made, bound)


def _fits(part: Tensor, graph: Graph, v: Value) -> bool:
    if part.real and (v.dtype is None or not v.dtype.is_float):
        return False
    return not part.known or v in graph.constants


def _read_once(graph: Graph, v: Value) -> bool:
    return len(graph.users(v)) == 1 and v not in graph.outputs


def _operation(
    part: Apply,
    graph: Graph,
    op: Operation,
    bound: Bound,
) -> Iterator[Bound]:
    if part in bound:
        if bound[part] is op:
            yield bound
        return
    if not part.operator.covers(op) or op.subgraphs:
        return
    named = _attributes(part, op)
    given = [*op.inputs]
    count = len(part.operands)
    if named is None or not _agree(named, bound):
        return
    if not part.rest and any(v is not None for v in given[count:]):
        return
    given += [None] * (count - len(given))
    orders = [given[:count]]
    if count == 2 and has_trait(op, Trait.COMMUTATIVE):
        orders.append([given[1], given[0]])
    for order in orders:
        yield from _all(part, graph, order, {**bound, **named, part: op}, 0)


def _all(
    part: Apply,
    graph: Graph,
    values: list[Value | None],
    bound: Bound,
    n: int,
) -> Iterator[Bound]:
    if n == len(part.operands):
        yield bound
        return
    for more in _value(part.operands[n], graph, values[n], bound):
        yield from _all(part, graph, values, more, n + 1)


def _attributes(part: Apply, op: Operation) -> Bound | None:
    """The values of the pattern's attributes; None if they do not fit."""
    if not part.open and any(name not in part.attributes for name in op.attributes):
        return None
    found: dict[Any, Any] = {}
    for name, wanted in part.attributes.items():
        match wanted:
            case Attribute():
                found[wanted] = op.attr(name, wanted.default)
            case LeftOut():
                if not _equal(op.attr(name, wanted.default), wanted.default):
                    return None
            case _:
                if name not in op.attributes or not _equal(op.attributes[name], wanted):
                    return None
    return found


def _agree(named: Bound, bound: Bound) -> bool:
    """Whether an attribute that occurs several times is the same everywhere."""
    both = [(value, bound[a]) for a, value in named.items() if a in bound]
    return all(
        one is other or (one is not None and other is not None and _equal(one, other))
        for one, other in both
    )


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, str | bytes) or isinstance(b, str | bytes):
        return bool(a == b)
    return np.shape(a) == np.shape(b) and bool(np.all(np.asarray(a) == np.asarray(b)))
