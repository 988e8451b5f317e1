"""Transposes and concatenations moved past other operators."""

from __future__ import annotations

from typing import Any

from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import (
    Attribute,
    Computed,
    Tensor,
    onnx,
    tensors,
)
from tilewright.graph.rules.rule import Condition, Rule
from tilewright.graph.rules.substitutions.drawing import (
    RandomGraph,
)
from tilewright.graph.rules.substitutions.products import (
    no_vector,
)
from tilewright.graph.rules.substitutions.rows import (
    BINARY,
    ROUNDED,
    UNARY,
    both,
    meaning,
    same_rank,
    typed,
)

x, y, z, w = tensors("x y z w")
Drawn = dict[Any, Any]

# ------------------------------------------------------------------------------------- transposes

PERMS = (
    [1, 0],
    [0, 2, 1],
    [2, 0, 1],
    [1, 2, 0],
    [0, 1],
    [0, 1, 3, 2],
)
perm = Attribute("perm", examples=PERMS)
second = Attribute("perm'", examples=PERMS)
unary = UNARY(x).with_attributes()
binary = BINARY(x, y)


def transposed(of: Any, by: Any = perm) -> Any:
    """A transpose with an attribute, or a computed permutation, as its order."""
    return onnx.Transpose(of, perm=by)


behind = UNARY(transposed(x)).with_attributes()
behind_both = BINARY(transposed(x), transposed(y))


def order(m: Match, by: Attribute, of: Tensor) -> list[int]:
    """A permutation in full; if omitted, it reverses the axes."""
    found = m.attribute(by)
    if found is None:
        return list(range(len(m[of].extents)))[::-1]
    return [int(n) for n in found]


def _composed(m: Match) -> list[int]:
    first = order(m, perm, x)
    return [first[n] for n in order(m, second, x)]


def _swaps_the_last_two(m: Match) -> bool:
    """perm exchanges the last two axes"""
    rank = len(m[x].extents)
    swapped = list(range(rank))
    swapped[-2:] = swapped[-2:][::-1]
    return rank >= 2 and order(m, perm, x) == swapped


meaning(_swaps_the_last_two, {perm: "[1, 0]"})


def _pairs(draw: RandomGraph) -> Drawn:
    """x and y that broadcast, and a permutation."""
    by = draw.one_of(None, *PERMS)
    rank = draw.one_of(2, 3) if by is None else len(by)
    shape = tuple(draw.extent(1, 3) for _ in range(rank))
    other = tuple(1 if draw.maybe(0.3) else n for n in shape)
    if draw.maybe(0.3):
        other = other[draw.one_of(1, -1) :]
    if draw.maybe(0.3):
        shape = other = (2,) * rank
        other = other[draw.one_of(0, 1) :]
    return {x: shape, y: other, perm: by}


def _products(draw: RandomGraph) -> Drawn:
    by = draw.one_of(
        None,
        None,
        [1, 0],
        [0, 2, 1],
        [0, 2, 1],
        [2, 1, 0],
        [0, 1],
        [0, 1, 2],
    )
    rank = draw.one_of(2, 3) if by is None else len(by)
    extent = draw.one_of(1, 2, 3)
    batch = (extent,) * (rank - 2)
    rows, columns = draw.one_of((extent, extent), (1, 2))
    shapes = [
        (*batch, rows, extent),
        (*batch, extent, columns),
    ]
    if draw.maybe(0.3):
        shapes[draw.one_of(0, 1)] = (extent,) * draw.one_of(1, 2, 3)
    elif by is None:
        shapes = [(extent,) * draw.one_of(2, 2, 3) for _ in shapes]
    return {x: shapes[0], y: shapes[1], perm: by}


TRANSPOSES = (
    Rule(
        "two-transposes",
        onnx.Transpose(onnx.Transpose(x, perm=perm), perm=second),
        transposed(x, Computed("perm'(perm)", _composed)),
    ),
    Rule(
        "transpose-before-unary",
        transposed(unary),
        unary.on(transposed(x)),
    ),
    Rule(
        "transpose-behind-unary",
        behind,
        transposed(behind.on(x)),
    ),
    Rule(
        "transpose-before-binary",
        transposed(binary),
        binary.on(transposed(x), transposed(y)),
        [same_rank(x, y)],
        samples=typed(_pairs),
    ),
    Rule(
        "transpose-behind-binary",
        behind_both,
        transposed(behind_both.on(x, y)),
        [same_rank(x, y)],
        samples=typed(_pairs),
    ),
    *both(
        "transpose-of-a-product",
        "product-of-transposes",
        transposed(x @ y),
        transposed(y) @ transposed(x),
        [same_rank(x, y), _swaps_the_last_two],
        typed(_products),
    ),
)

# --------------------------------------------------------------------------------- concatenations

axis = Attribute("axis", examples=(0, 1, -1, -2))


def joined(*of: Any, at: Any = axis) -> Any:
    """A concatenation."""
    return onnx.Concat(*of, axis=at)


def _along(place: int, of: Tensor, words: str) -> Condition:
    """The condition on the axis of a tensor, counted from the end."""

    def condition(m: Match) -> bool:
        rank = len(m[of].extents)
        found = int(m.attribute(axis))
        return (found if found < 0 else found - rank) == place

    condition.__doc__ = f"they are joined along {words}"
    return meaning(condition, {axis: str(place)})


def part_by_part(m: Match) -> bool:
    """x and z, and y and w, have the same rank and the same extent along the axis"""
    at = int(m.attribute(axis))
    pairs = [
        (m[x].extents, m[z].extents),
        (m[y].extents, m[w].extents),
    ]
    return all(len(p) == len(q) and p[at] == q[at] for p, q in pairs)


def _one_shape_each(m: Match) -> bool:
    """x and z, and y and w, have the same shape"""
    return m[x].shape == m[z].shape and m[y].shape == m[w].shape


def _alike_but(place: int) -> Condition:
    """The condition that x and y have the same shape except along an axis."""

    def condition(m: Match) -> bool:
        shapes = [list(m[t].extents) for t in (x, y)]
        for shape in shapes:
            shape[place:] = [0, *shape[place:][1:]]
        return shapes[0] == shapes[1]

    condition.__doc__ = f"x and y differ only along axis {place}"
    return condition


def drawn_parts(draw: RandomGraph) -> Drawn:
    """Parts of two sums: x and y of one, z and w of the other."""
    rank = draw.one_of(1, 2, 3)
    at = int(draw.rng.integers(-rank, rank))
    shape = [draw.one_of(1, 2, 3) for _ in range(rank)]
    found = {}
    for t in (x, y, z, w):
        own = [*shape]
        own[at] = draw.one_of(0, 1, 1, 2)
        if t in (z, w) and draw.maybe(0.2):
            own = [1 if n != at % rank else e for n, e in enumerate(own)]
        found[t] = tuple(own)
    if draw.maybe(0.4):
        found |= {z: found[x], w: found[y]}
    return {**found, axis: at}


def _factors(
    places: tuple[Tensor, Tensor],
    single: Tensor,
    left: bool,
) -> Any:
    """Two matrices, or vectors, to join, and one to multiply by from the left or the right."""

    def draw_shapes(draw: RandomGraph) -> Drawn:
        rank = draw.one_of(2, 2, 3)
        extent = draw.one_of(2, 3)
        joins: list[tuple[int, ...]] = []
        at = draw.one_of(-1, -2, rank - 1, rank - 2, 0)
        for _ in range(2):
            shape = [extent] * rank
            if draw.maybe():
                shape[at] = draw.one_of(1, 2, 3)
            if rank == 3 and draw.maybe(0.2):
                shape = shape[1:] if draw.maybe() else [1, *shape[1:]]
            joins.append(tuple(shape))
        if draw.maybe(0.1):
            joins, at = [(extent,), (extent,)], -1
        depth = 2 * extent if draw.maybe(0.2) else extent
        other: tuple[int, ...] = (3, depth) if left else (depth, 3)
        if draw.maybe(0.2):
            other = (depth,)
        elif draw.maybe(0.4):
            other = (draw.one_of(1, extent), *other)
        return {
            **dict(zip(places, joins, strict=True)),
            single: other,
            axis: at,
        }

    return typed(draw_shapes)


def _blocks(draw: RandomGraph) -> Drawn:
    rows = draw.one_of(1, 2)
    columns = draw.one_of(1, 2)
    first = draw.one_of(1, 2)
    second_depth = draw.one_of(1, 2)
    if draw.maybe(0.3):
        first, second_depth = second_depth, first
    left = [(rows, first), (rows, second_depth)]
    right = [(first, columns), (second_depth, columns)]
    if draw.maybe(0.3):
        right = right[::-1]
    sides: list[tuple[int, ...]] = [*left, *right]
    if draw.maybe(0.3):  # stacks of matrices, and one that is broadcast to the others
        sides = [(draw.one_of(1, 2, 2), *side) for side in sides]
    return dict(zip((x, y, z, w), sides, strict=True))


def _fitting_blocks(m: Match) -> bool:
    """x has as many columns as z has rows"""
    return m[x].extents[-1] == m[z].extents[-2]


def _blocks_alike(m: Match) -> bool:
    """x and y are the same but for columns, and z and w but for rows"""
    left = m[x].extents, m[y].extents
    right = m[z].extents, m[w].extents
    if min(map(len, (*left, *right))) < 2:
        return False
    rows = left[0][:-1] == left[1][:-1]
    above, below = ((*e[:-2], e[-1]) for e in right)
    return rows and above == below


CONCATENATIONS = (
    Rule(
        "join-of-a-join",
        joined(joined(x, y), z),
        joined(x, y, z),
        samples=typed(drawn_parts),
    ),
    Rule(
        "join-of-a-join-behind",
        joined(x, joined(y, z)),
        joined(x, y, z),
        samples=typed(drawn_parts),
    ),
    Rule(
        "join-behind-unary",
        (of_join := UNARY(joined(x, y)).with_attributes()),
        joined(of_join.on(x), of_join.on(y)),
        samples=typed(drawn_parts),
    ),
    Rule(
        "join-behind-sum",
        joined(x, y) + joined(z, w),
        joined(x + z, y + w),
        [part_by_part],
        samples=typed(drawn_parts),
    ),
    Rule(
        "join-before-sum",
        joined(x + z, y + w),
        joined(x, y) + joined(z, w),
        [_one_shape_each],
        samples=typed(drawn_parts),
    ),
    Rule(
        "join-behind-elementwise-product",
        joined(x, y) * joined(z, w),
        joined(x * z, y * w),
        [part_by_part],
        samples=typed(drawn_parts),
    ),
    Rule(
        "join-before-elementwise-product",
        joined(x * z, y * w),
        joined(x, y) * joined(z, w),
        [_one_shape_each],
        samples=typed(drawn_parts),
    ),
    Rule(
        "join-behind-product",
        joined(x, y) @ z,
        joined(x @ z, y @ z, at=-2),
        [_along(-2, x, "rows"), no_vector(z)],
        samples=_factors((x, y), z, False),
        **ROUNDED,
    ),
    Rule(
        "join-before-product",
        joined(x @ z, y @ z),
        joined(x, y, at=-2) @ z,
        [_alike_but(-2), no_vector(x, y)],
        samples=_factors((x, y), z, False),
        **ROUNDED,
    ),
    Rule(
        "join-behind-product-on-the-right",
        z @ joined(x, y),
        joined(z @ x, z @ y, at=-1),
        [_along(-1, x, "columns"), no_vector(x, y)],
        samples=_factors((x, y), z, True),
        **ROUNDED,
    ),
    Rule(
        "join-before-product-on-the-right",
        joined(z @ x, z @ y),
        z @ joined(x, y, at=-1),
        [_alike_but(-1), no_vector(x, y)],
        samples=_factors((x, y), z, True),
        **ROUNDED,
    ),
    Rule(
        "blocks-of-a-product",
        joined(x, y, at=-1) @ joined(z, w, at=-2),
        x @ z + y @ w,
        [_fitting_blocks],
        samples=typed(_blocks),
        **ROUNDED,
    ),
    Rule(
        "product-of-blocks",
        x @ z + y @ w,
        joined(x, y, at=-1) @ joined(z, w, at=-2),
        [_blocks_alike],
        samples=typed(_blocks),
        **ROUNDED,
    ),
)
MOTION = (*TRANSPOSES, *CONCATENATIONS)
