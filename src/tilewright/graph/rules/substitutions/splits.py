"""Splits of concatenations, and splits moved past elementwise operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.base.dataclass import dataclass
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import (
    AnyOf,
    Attribute,
    one_of,
    onnx,
    tensors,
)
from tilewright.graph.rules.rule import Rule
from tilewright.graph.rules.substitutions.drawing import RandomGraph, drawn
from tilewright.graph.rules.substitutions.rows import UNARY

x = tensors("x")[0]
axis = Attribute("axis", examples=(0, 1, -1), default=0)

# Along another axis the results would have other shapes, which no condition excludes.
split = onnx.Split(x, ...).with_attributes()
first, last = split.results(2)


def _split_and_joined(draw: RandomGraph) -> list[Value]:
    rank = draw.one_of(1, 2)
    shape = [2] * rank
    at, back = (int(draw.rng.integers(-rank, rank)) for _ in range(2))
    image = draw.input(*shape)
    parts = draw.f.split(image, [1, 1], axis=at)
    return [draw.f.op("Concat", *parts, axis=back)]


@dataclass(frozen=True, eq=False)
class SplitOf:
    """A Split of an operator's result; the match's `kept` holds that operation as `of`."""

    operator: AnyOf

    names = onnx.Split.names

    def matches(self, graph: Graph, op: Operation) -> Iterator[Match]:
        """The match at `op`, if it is such a Split."""
        source = op.inputs[0]
        made = None if source is None else graph.producer(source)
        if made is not None and self.operator.covers(made) and len(made.writes) == 1:
            yield Match(graph, op, {self: made})

    def __str__(self) -> str:
        return f"Split({self.operator}(...))"


@dataclass(frozen=True, eq=False)
class PerSplitPart:
    """One operator on each part of a Split, which nothing else reads; the match holds the Split."""

    operator: AnyOf

    @property
    def names(self) -> frozenset[str]:
        """The qualified names of the operators at which to look for a match."""
        return self.operator.names

    def matches(self, graph: Graph, op: Operation) -> Iterator[Match]:
        """The match at `op`, if it is the last of them."""
        source = op.inputs[0]
        made = None if source is None else graph.producer(source)
        if made is None or not onnx.Split.covers(made) or None in made.outputs:
            return
        readers = [graph.users(v) for v in made.writes]
        alone = all(len(r) == 1 for r in readers)
        if not alone or not set(made.writes).isdisjoint(graph.outputs):
            return
        on_parts = [r[0] for r in readers]
        alike = all(
            o.qualified == op.qualified
            and o.version == op.version
            and len(o.inputs) == 1
            and dict(o.attributes) == dict(op.attributes)
            for o in on_parts
        )
        if alike and max(on_parts, key=graph.operations.index) is op:
            others = tuple(o for o in on_parts if o is not op)
            yield Match(graph, op, {self: made}, also=others)

    def __str__(self) -> str:
        return f"{self.operator}(part), for each part of Split(x)"


of_join = SplitOf(one_of(onnx.Concat))
of_unary = SplitOf(UNARY)
on_each_part = PerSplitPart(UNARY)


def _what_was_joined(m: Match, f: Fragment) -> Sequence[Value]:
    """the operands of Concat"""
    return [v for v in m.bound[of_join].inputs if v is not None]


def _as_many(m: Match) -> bool:
    """there are as many parts as operands of Concat"""
    return len(m.bound[of_join].inputs) == len(m.results)


def _joined_and_split(draw: RandomGraph) -> list[Value]:
    rank = draw.one_of(1, 2)
    at, back = (int(draw.rng.integers(-rank, rank)) for _ in range(2))
    parts = [draw.input(*[draw.one_of(1, 2)] * rank) for _ in range(2)]
    joined = draw.f.op("Concat", *parts, axis=at)
    count = draw.one_of(2, 2, 3)
    extent = joined.extents[back]
    if extent < count:
        back, extent = at, joined.extents[at]
    sizes = [1] * (count - 1)
    sizes.append(extent - len(sizes))
    if draw.maybe():
        sizes = sizes[::-1]
    if min(sizes) < 0:
        sizes = [extent, *[0] * (count - 1)]
    return draw.f.split(joined, sizes, axis=back)


def _on_the_parts(m: Match, f: Fragment) -> Sequence[Value]:
    """the operator on each part of Split(x)"""
    made = m.bound[of_unary]
    parts = f.ops(
        "Split",
        made.inputs[0],
        *m.root.inputs[1:],
        version=m.root.version,
        count=len(m.root.outputs),
        **m.root.attributes,
    )
    return [f.apply(made, [part], made.attributes) for part in parts]


def _before_the_split(m: Match, f: Fragment) -> Sequence[Value]:
    """Split of the operator on x"""
    made = m.bound[on_each_part]
    whole = f.apply(m.root, [made.inputs[0]], m.root.attributes)
    parts = f.ops(
        "Split",
        whole,
        *made.inputs[1:],
        version=made.version,
        count=len(made.outputs),
        **made.attributes,
    )
    place = {v: n for n, v in enumerate(made.writes)}
    return [parts[place[op.inputs[0]]] for op in (m.root, *m.also) if op.inputs[0]]


def _unary_and_split(draw: RandomGraph) -> list[Value]:
    unary = draw.f.op(draw.one_of("Relu", "Neg", "Tanh"), draw.input(3, 2))
    return draw.f.split(unary, [1, 2], axis=0)


def _split_and_unary(draw: RandomGraph) -> list[Value]:
    parts = draw.f.split(draw.input(3, 2), [1, 2], axis=0)
    op_type = draw.one_of("Relu", "Neg", "Tanh")
    return [draw.f.op(op_type, part) for part in parts[:: draw.one_of(1, -1)]]


SPLITS = (
    Rule(
        "join-of-a-split",
        onnx.Concat(first, last, axis=axis),
        x,
        samples=drawn(_split_and_joined),
    ),
    Rule(
        "split-of-a-join",
        of_join,
        _what_was_joined,
        [_as_many],
        samples=drawn(_joined_and_split),
    ),
    Rule(
        "unary-behind-split",
        of_unary,
        _on_the_parts,
        samples=drawn(_unary_and_split),
    ),
    Rule(
        "unary-before-split",
        on_each_part,
        _before_the_split,
        samples=drawn(_split_and_unary),
    ),
)
