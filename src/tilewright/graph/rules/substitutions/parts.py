"""Parts of tensors: splits, slices, lookups, and other shapes of the same elements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import (
    AnyOf,
    Attribute,
    Computed,
    constants,
    maybe,
    one_of,
    onnx,
    tensors,
)
from tilewright.graph.rules.rule import Given, Rule
from tilewright.graph.rules.substitutions.drawing import (
    Drawing,
    drawn,
)
from tilewright.graph.rules.substitutions.motion import (
    order,
    perm,
)
from tilewright.graph.rules.substitutions.rows import (
    BINARY,
    ROUNDED,
    UNARY,
    typed,
)

x, y, w = tensors("x y w")
axis = Attribute("axis", examples=(0, 1, -1), default=0)

# ----------------------------------------------------------------------------------------- splits
# Along another axis the results would have other shapes, so that no condition says which.

split = onnx.Split(x, ...).with_attributes()
first, last = split.results(2)


def _split_and_joined(draw: Drawing) -> list[Value]:
    rank = draw.one_of(1, 2)
    shape = [2] * rank
    at, back = (int(draw.rng.integers(-rank, rank)) for _ in range(2))
    image = draw.input(*shape)
    parts = draw.f.pieces("Split", image, draw.f.ints(1, 1), count=2, axis=at)
    return [draw.f.op("Concat", *parts, axis=back)]


@dataclass(frozen=True, eq=False)
class SplitOf:
    """A Split of what an operator makes: the match's `kept` has that operation as `of`."""

    operator: AnyOf

    names = onnx.Split.names

    def matches(self, graph: Graph, op: Operation) -> Iterator[Match]:
        """The place where `op` is such a Split."""
        source = op.inputs[0]
        made = None if source is None else graph.producer(source)
        if made is not None and self.operator.covers(made) and len(made.writes) == 1:
            yield Match(graph, op, {self: made})

    def __str__(self) -> str:
        return f"Split({self.operator}(...))"


@dataclass(frozen=True, eq=False)
class OnEachPart:
    """One operator on each part of a Split, which nothing else reads. The match has the Split."""

    operator: AnyOf

    @property
    def names(self) -> frozenset[str]:
        """The qualified names of the operators at which to look for it."""
        return self.operator.names

    def matches(self, graph: Graph, op: Operation) -> Iterator[Match]:
        """The place where `op` is the last of them."""
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
on_each_part = OnEachPart(UNARY)


def _what_was_joined(m: Match, f: Fragment) -> Sequence[Value]:
    """the operands of Concat"""
    return [v for v in m.bound[of_join].inputs if v is not None]


def _as_many(m: Match) -> bool:
    """as many parts as were joined"""
    return len(m.bound[of_join].inputs) == len(m.results)


def _joined_and_split(draw: Drawing) -> list[Value]:
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
    return draw.f.pieces(
        "Split",
        joined,
        draw.f.ints(*sizes),
        count=count,
        axis=back,
    )


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


def _unary_and_split(draw: Drawing) -> list[Value]:
    unary = draw.f.op(draw.one_of("Relu", "Neg", "Tanh"), draw.input(3, 2))
    return draw.f.pieces("Split", unary, draw.f.ints(1, 2), count=2, axis=0)


def _split_and_unary(draw: Drawing) -> list[Value]:
    parts = draw.f.pieces(
        "Split",
        draw.input(3, 2),
        draw.f.ints(1, 2),
        count=2,
        axis=0,
    )
    op_type = draw.one_of("Relu", "Neg", "Tanh")
    return [draw.f.op(op_type, part) for part in parts[:: draw.one_of(1, -1)]]


# ----------------------------------------------------------------------------------------- slices

INT_MIN = np.iinfo(np.int64).min
starts, ends, axes, steps = constants("starts ends axes steps")
starts2, ends2, axes2, steps2 = constants("starts' ends' axes' steps'")
inner = onnx.Slice(x, starts, ends, maybe(axes), maybe(steps))
outer = onnx.Slice(inner, starts2, ends2, maybe(axes2), maybe(steps2))


def _ranges(m: Match, parts: Any, ranges: dict[int, range]) -> dict[int, range]:
    """The places that remain along each axis after a Slice with these operands."""
    begin, end, along, step = (m.known(p) for p in parts)
    assert begin is not None and end is not None
    count = len(begin)
    along = np.arange(count) if along is None else along
    step = np.ones(count, int) if step is None else step
    found = dict(ranges)
    for n in range(count):
        at = int(along[n]) % len(m[x].extents)
        by = slice(int(begin[n]), int(end[n]), int(step[n]))
        found[at] = found[at][by]
    return found


def _one_slice(m: Match, f: Fragment) -> Value:
    """Slice of x by both"""
    whole = {n: range(extent) for n, extent in enumerate(m[x].extents)}
    once = _ranges(m, (starts, ends, axes, steps), whole)
    both = _ranges(m, (starts2, ends2, axes2, steps2), once)
    changed = {n: r for n, r in both.items() if r != whole[n]}
    stops = [INT_MIN if r.stop < 0 else r.stop for r in changed.values()]
    operands = [
        f.ints(*(r.start for r in changed.values())),
        f.ints(*stops),
        f.ints(*changed),
        f.ints(*(r.step for r in changed.values())),
    ]
    return f.op("Slice", m[x], *operands)


def _slices(draw: Drawing) -> dict[Any, Any]:
    rank = draw.one_of(1, 2)
    found: dict[Any, Any] = {x: tuple(draw.one_of(3, 6) for _ in range(rank))}
    for parts in (
        (starts, ends, axes, steps),
        (starts2, ends2, axes2, steps2),
    ):
        count = draw.one_of(1, rank)
        numbers = draw.rng.integers(-8, 9, (2, count))
        along = draw.rng.permutation(rank)[:count]
        by = draw.rng.choice([-2, -1, 1, 2, 3], count)
        plain = draw.maybe(0.3)
        given = (
            *numbers,
            None if plain else along,
            None if plain else by,
        )
        found |= dict(zip(parts, given, strict=True))
    return found


# ----------------------------------------------------------------------------------------- shapes

SHAPES = one_of(onnx.Reshape, onnx.Flatten, onnx.Squeeze, onnx.Unsqueeze)
shaped = SHAPES(SHAPES(x, ...).with_attributes(), ...).with_attributes()
SHAPE = Computed(
    "its shape",
    lambda m: np.array(m.result.extents, np.int64),
)
as_result = onnx.Reshape(x, SHAPE, allowzero=1)


def _reshapes(draw: Drawing) -> list[Value]:
    value = draw.input(*draw.one_of((2, 3), (1, 2, 3), (2, 1, 1, 3), (0, 2)))
    for _ in range(2):
        way = draw.one_of("Reshape", "Flatten", "Unsqueeze")
        if way == "Reshape":
            value = draw.f.op(
                way,
                value,
                draw.f.ints(*draw.one_of((3, -1), (1, -1))),
            )
        elif way == "Flatten":
            value = draw.f.op(way, value, axis=draw.one_of(0, 1))
        else:
            value = draw.f.op(way, value, draw.f.ints(draw.one_of(0, 1)))
    return [value]


def _order_kept(m: Match) -> bool:
    """axes of more than one element keep their order"""
    extents = m[x].extents
    moved = [n for n in order(m, perm, x) if extents[n] != 1]
    return moved == sorted(moved)


def _turned(draw: Drawing) -> dict[Any, Any]:
    by = draw.one_of([1, 0], [0, 2, 1], [2, 0, 1], [1, 0, 2])
    return {
        x: tuple(draw.one_of(1, 1, 2, 3) for _ in by),
        perm: by,
    }


expanded = onnx.Expand(y, ...)
spread = BINARY(x, expanded)


def _spreads(draw: Drawing) -> dict[Any, Any]:
    shape = (draw.extent(1, 3), draw.extent(1, 3))
    target = draw.one_of(shape, (2, *shape), (1, 1))
    small = tuple(draw.one_of(1, n) for n in shape)
    return {
        x: shape,
        y: small,
        expanded: Given(more=(np.array(target),)),
    }


# ---------------------------------------------------------------------------------------- lookups

index = tensors("index")[0]
known_index = constants("index")[0]
looked_up = onnx.Gather(x, index, axis=axis)
fixed = onnx.Gather(x, known_index, axis=axis)
of_looked_up = UNARY(looked_up).with_attributes()


def _along_rows(m: Match) -> bool:
    """rows of a matrix are looked up"""
    place = m.attribute(axis)
    return len(m[x].extents) == 2 and place in (0, -2)


def _no_more_axes(m: Match) -> bool:
    """w is a matrix, and index has an axis"""
    return len(m[w].extents) == 2 and len(m[index].extents) >= 1


def _lookups(draw: Drawing) -> dict[Any, Any]:
    extent = draw.one_of(2, 3)
    table = (extent,) * draw.one_of(2, 2, 2, 3)
    factor = (extent,) * draw.one_of(1, 2, 2, 3)
    shape = (extent,) * draw.one_of(0, 1, 1, 2)
    places = draw.rng.integers(-extent, extent, shape)
    return {
        x: table,
        w: factor,
        index: places,
        axis: draw.one_of(0, 0, 0, 1, -1),
    }


def _evenly_spaced(m: Match) -> bool:
    """index is evenly spaced from its first to its last"""
    found = _places(m)
    if found.ndim != 1 or not found.size:
        return False
    gaps = np.diff(found)
    return bool((gaps == gaps[:1]).all()) and (not gaps.size or bool(gaps[0]))


def _places(m: Match) -> Any:
    """The index, counted from the front."""
    at = m.attribute(axis)
    extent = m[x].extents[at]
    found = m.array(known_index).astype(np.int64)
    return np.where(found < 0, found + extent, found)


def _as_slice(m: Match, f: Fragment) -> Value:
    """Slice(x)"""
    places = np.ravel(_places(m))
    step = int(places[1] - places[0]) if places.size > 1 else 1
    stop = int(places[-1]) + (1 if step > 0 else -1)
    end = INT_MIN if stop < 0 else stop
    at = f.ints(m.attribute(axis))
    return f.op(
        "Slice",
        m[x],
        f.ints(int(places[0])),
        f.ints(end),
        at,
        f.ints(step),
    )


def _indices(draw: Drawing) -> dict[Any, Any]:
    extent = 4
    kind = draw.one_of("even", "even", "odd", "constant", "matrix")
    first_place = draw.one_of(0, 1, -1)
    numbers = {
        "even": np.arange(3) if first_place else np.arange(3, -1, -2),
        "odd": draw.rng.integers(-extent, extent, 3),
        "constant": np.array([1, 1]),
        "matrix": np.array([[0], [1]]),
    }
    return {
        x: (extent, extent),
        known_index: numbers[kind],
        axis: draw.one_of(0, 1, -1),
    }


PARTS = (
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
    Rule(
        "slice-of-a-slice",
        outer,
        _one_slice,
        samples=typed(_slices),
    ),
    Rule(
        "shape-of-a-shape",
        shaped,
        as_result,
        samples=drawn(_reshapes),
    ),
    Rule(
        "transpose-as-shape",
        onnx.Transpose(x, perm=perm),
        as_result,
        [_order_kept],
        samples=typed(_turned),
    ),
    Rule(
        "expand-in-binary",
        spread,
        spread.on(x, y),
        samples=typed(_spreads),
    ),
    Rule(
        "lookup-as-slice",
        fixed,
        _as_slice,
        [_evenly_spaced],
        samples=typed(_indices),
    ),
    Rule(
        "product-into-table",
        looked_up @ w,
        onnx.Gather(x @ w, index, axis=0),
        [_along_rows, _no_more_axes],
        samples=typed(_lookups),
        **ROUNDED,
    ),
    Rule(
        "unary-into-table",
        of_looked_up,
        onnx.Gather(of_looked_up.on(x), index, axis=axis),
        samples=typed(_lookups),
    ),
)
