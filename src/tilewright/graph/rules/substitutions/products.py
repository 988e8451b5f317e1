"""Products of matrices: in another order, and of sums."""

from __future__ import annotations

import numpy as np

from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import (
    Computed,
    LeftOut,
    Tensor,
    onnx,
    tensors,
)
from tilewright.graph.rules.rule import (
    Condition,
    Rule,
    Sample,
)
from tilewright.graph.rules.substitutions.drawing import (
    RandomGraph,
)
from tilewright.graph.rules.substitutions.rows import (
    NUMBER,
    REAL,
    ROUNDED,
    both,
    meaning,
    typed,
)

a, b, c = tensors("a b c")


def no_vector(*parts: Tensor) -> Condition:
    """The condition that operands of a product have at least two axes; a vector next to a matrix
    gets a second axis, which disappears again.
    """

    def condition(m: Match) -> bool:
        return all(m[p].static and len(m[p].extents) >= 2 for p in parts)

    names = ", ".join(p.name for p in parts)
    condition.__doc__ = f"no vector among {names}"
    return condition


def _chains(rng: np.random.Generator) -> Sample:
    """Three operands that can be multiplied, in any number of dimensions."""
    draw = RandomGraph(rng)
    m, k, n, p = (draw.extent() for _ in range(4))
    if draw.maybe():
        m = k = n = p = 2
    shapes: list[tuple[int, ...]] = [(m, k), (k, n), (n, p)]
    batch = (draw.extent(2, 3),)
    found = []
    for shape in shapes:
        way = rng.random()
        if way < 0.2:
            shape = (*batch, *shape)
        elif way < 0.5:
            shape = shape[draw.one_of(0, 1) :][:1]
        found.append(shape)
    return draw.typed(dict(zip((a, b, c), found, strict=True)))


# ------------------------------------------------------------------- sums and factors of products


def _sums(draw: RandomGraph) -> dict[object, object]:
    """a and b as the left operands, c as the right, in any number of dimensions."""
    rows, depth, columns = (draw.one_of(1, 2, 3) for _ in range(3))
    left = [
        (rows, depth),
        (2, rows, depth),
        (depth,),
        (rows, 1),
        (1, depth),
    ]
    right = [
        (depth, columns),
        (2, depth, columns),
        (depth,),
    ]
    return {
        a: draw.one_of(*left),
        b: draw.one_of(*left),
        c: draw.one_of(*right),
    }


def _sums_on_the_right(
    draw: RandomGraph,
) -> dict[object, object]:
    rows, depth, columns = (draw.one_of(1, 2, 3) for _ in range(3))
    right = [
        (depth, columns),
        (2, depth, columns),
        (depth,),
        (1, columns),
        (depth, 1),
    ]
    left = [(rows, depth), (2, rows, depth), (depth,)]
    return {
        c: draw.one_of(*left),
        a: draw.one_of(*right),
        b: draw.one_of(*right),
    }


def one_shape(*parts: Tensor) -> Condition:
    """The condition that tensors have the same shape: none is broadcast."""

    def condition(m: Match) -> bool:
        return len({m[p].shape for p in parts}) == 1

    condition.__doc__ = f"{' and '.join(map(str, parts))} have the same shape"
    return condition


def one_number(part: Tensor) -> Condition:
    """The condition that a tensor is a single number without axes."""

    def condition(m: Match) -> bool:
        return m[part].shape == ()

    condition.__doc__ = f"{part} is a number"
    return meaning(condition, {part: NUMBER})


def _factors(draw: RandomGraph) -> dict[object, object]:
    """c as a factor of a product of a and b, or of one operand: a number, a row or a column."""
    rows, depth, columns = (draw.one_of(1, 2, 2, 3) for _ in range(3))
    extents = [
        (),
        (1,),
        (depth,),
        (columns,),
        (rows, 1),
        (1, columns),
        (1, depth),
    ]
    return {
        a: draw.one_of((rows, depth), (2, rows, depth), (depth,)),
        b: draw.one_of((depth, columns), (2, depth, columns), (depth,)),
        c: draw.one_of(*extents),
    }


def _a_row(m: Match) -> bool:
    """c has one axis, and b has columns"""
    return len(m[c].extents) == 1 and len(m[b].extents) >= 2


def _as_long_as_a(m: Match) -> bool:
    """c has an element for each column of a"""
    return m[c].extents[-1:] == m[a].extents[-1:]


def _as_column(m: Match) -> object:
    return np.array([-1, 1])


COLUMN = onnx.Reshape(c, Computed("[-1, 1]", _as_column))


# ------------------------------------------------------------------------------------------- Gemm

gemm = onnx.Gemm(
    a,
    b,
    c,
    alpha=LeftOut(1.0),
    beta=LeftOut(1.0),
    transA=LeftOut(0),
    transB=LeftOut(0),
)
plain_gemm = onnx.Gemm(
    a,
    b,
    alpha=LeftOut(1.0),
    beta=LeftOut(1.0),
    transA=LeftOut(0),
    transB=LeftOut(0),
)


def _gemms(draw: RandomGraph) -> dict[object, object]:
    rows, depth, columns = (draw.extent() for _ in range(3))
    more = [
        (),
        (columns,),
        (rows, 1),
        (rows, columns),
        (1, columns),
        (2, rows, 1),
    ]
    left = [(rows, depth), (rows, depth), (2, rows, depth)]
    return {
        a: draw.one_of(*left),
        b: (depth, columns),
        c: draw.one_of(*more),
    }


def _not_broadcast(m: Match) -> bool:
    """the product has the shape of the sum"""
    shape = (*m[a].extents[:-1], *m[b].extents[-1:])
    return len(m[c].extents) <= 2 and m.result.extents == shape


def matrices(*parts: Tensor) -> Condition:
    def condition(m: Match) -> bool:
        return all(len(m[p].extents) == 2 for p in parts)

    condition.__doc__ = f"{' and '.join(map(str, parts))} are matrices"
    return condition


PRODUCTS = (
    *both(
        "product-from-the-right",
        "product-from-the-left",
        (a @ b) @ c,
        a @ (b @ c),
        [no_vector(a, b, c)],
        _chains,
        REAL,
    ),
    *both(
        "right-factor-of-a-sum",
        "sum-times-a-matrix",
        a @ c + b @ c,
        (a + b) @ c,
        [one_shape(a, b)],
        typed(_sums),
        REAL,
    ),
    *both(
        "left-factor-of-a-sum",
        "matrix-times-a-sum",
        c @ a + c @ b,
        c @ (a + b),
        [one_shape(a, b)],
        typed(_sums_on_the_right),
        REAL,
    ),
    *both(
        "right-factor-of-a-difference",
        "difference-times-a-matrix",
        a @ c - b @ c,
        (a - b) @ c,
        [one_shape(a, b)],
        typed(_sums),
        REAL,
    ),
    *both(
        "left-factor-of-a-difference",
        "matrix-times-a-difference",
        c @ a - c @ b,
        c @ (a - b),
        [one_shape(a, b)],
        typed(_sums_on_the_right),
        REAL,
    ),
    *both(
        "number-into-left-operand",
        "number-out-of-left-operand",
        (a @ b) * c,
        (a * c) @ b,
        [one_number(c)],
        typed(_factors),
        REAL,
    ),
    *both(
        "number-into-right-operand",
        "number-out-of-right-operand",
        (a @ b) * c,
        a @ (b * c),
        [one_number(c)],
        typed(_factors),
        REAL,
    ),
    *both(
        "row-into-right-operand",
        "row-out-of-right-operand",
        (a @ b) * c,
        a @ (b * c),
        [_a_row],
        typed(_factors),
        REAL,
    ),
    Rule(
        "row-of-left-operand-into-the-right",
        (a * c) @ b,
        a @ (b * COLUMN),
        [_a_row, _as_long_as_a],
        samples=typed(_factors),
        **ROUNDED,
    ),
    Rule(
        "gemm-of-product-and-sum",
        a @ b + c,
        onnx.Gemm(a, b, c),
        [matrices(a, b), _not_broadcast],
        samples=typed(_gemms),
        **ROUNDED,
    ),
    Rule(
        "product-and-sum-of-gemm",
        gemm,
        a @ b + c,
        samples=typed(_gemms),
        **ROUNDED,
    ),
    Rule(
        "product-of-gemm",
        plain_gemm,
        a @ b,
        samples=typed(_gemms),
        **ROUNDED,
    ),
)
