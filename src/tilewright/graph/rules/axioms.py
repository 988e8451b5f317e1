"""Axioms of the operators: equations, as rules to apply from left to right.

These are axioms like TASO's (linearity, associativity, distributivity, the laws of transposition
and concatenation; none for convolutions, poolings and splits) and the usual ones of elementwise
operators. `prove.py` derives rules from them. They hold wherever both sides have fitting operands,
as their conditions state. Each is itself checked on random operands. In addition, sums and
elementwise products are assumed associative and commutative.
"""

from __future__ import annotations

from typing import Any

from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import onnx, reals, tensors
from tilewright.graph.rules.rule import Rule
from tilewright.graph.rules.substitutions.drawing import RandomGraph
from tilewright.graph.rules.substitutions.motion import (
    CONCATENATIONS,
    TRANSPOSES,
    axis,
    drawn_parts,
    joined,
    part_by_part,
    perm,
    transposed,
    w,
    x,
    y,
    z,
)
from tilewright.graph.rules.substitutions.products import PRODUCTS, one_number
from tilewright.graph.rules.substitutions.rows import REAL, typed
from tilewright.graph.rules.substitutions.strength import STRENGTH
from tilewright.graph.rules.substitutions.sums import SUMS

c = tensors("c")[0]
a, b = reals("a b")


def _blocks(draw: RandomGraph) -> dict[Any, Any]:
    """Four matrices that may or may not fit together into one."""
    heights = draw.one_of((1, 2), (2, 2))
    widths = draw.one_of((1, 2), (2, 2))
    shapes = [(h, n) for n in widths for h in heights]
    if draw.maybe(0.3):
        shapes = [(2, n) for n in (1, 2, 2, 1)]
    number = (2, 2) if draw.maybe(0.2) else draw.one_of((), (1,), (2,))
    return {**dict(zip((x, y, z, w), shapes, strict=True)), c: number, axis: 0}


def _in_rows(m: Match) -> bool:
    """x and z, and y and w, have the same number of rows"""
    pairs = [(m[x], m[z]), (m[y], m[w])]
    return all(one.extents[0] == other.extents[0] for one, other in pairs)


SWAP = [1, 0]


def _transposes(draw: RandomGraph) -> dict[Any, Any]:
    extent = draw.one_of(1, 2)
    number = draw.one_of((), (), (extent,), (1, extent))
    return {x: (extent, extent), c: number, perm: SWAP}


# Substitutions that are axioms, in the direction that proofs use.
_TAKEN = (
    "product-with-a-sum",
    "product-of-exponentials",
    "product-of-absolutes",
    "square",
    "product-from-the-left",
    "sum-times-a-matrix",
    "matrix-times-a-sum",
    "number-out-of-left-operand",
    "number-out-of-right-operand",
    "two-transposes",
    "transpose-before-unary",
    "transpose-before-binary",
    "transpose-of-a-product",
    "join-of-a-join",
    "join-of-a-join-behind",
    "join-behind-unary",
    "join-behind-sum",
    "join-behind-elementwise-product",
    "join-behind-product",
    "join-behind-product-on-the-right",
    "blocks-of-a-product",
    "product-and-sum-of-gemm",
    "product-of-gemm",
)
_ROWS = {r.name: r for r in (*SUMS, *STRENGTH, *PRODUCTS, *TRANSPOSES, *CONCATENATIONS)}

AXIOMS: tuple[Rule, ...] = (
    Rule(
        "number-out-of-transpose",
        transposed(x * c),
        transposed(x) * c,
        [one_number(c)],
        samples=typed(_transposes),
    ),
    Rule("transpose-back", transposed(transposed(x, SWAP), SWAP), x),
    *(_ROWS[name] for name in _TAKEN),
    Rule(
        "join-turned",
        transposed(joined(x, y, at=-2), SWAP),
        joined(transposed(x, SWAP), transposed(y, SWAP), at=-1),
        samples=typed(_blocks),
    ),
    Rule(
        "columns-turned",
        transposed(joined(x, y, at=-1), SWAP),
        joined(transposed(x, SWAP), transposed(y, SWAP), at=-2),
        samples=typed(_blocks),
    ),
    Rule(
        "rows-of-columns",
        joined(joined(x, y, at=-2), joined(z, w, at=-2), at=-1),
        joined(joined(x, z, at=-1), joined(y, w, at=-1), at=-2),
        [_in_rows],
        samples=typed(_blocks),
    ),
    Rule(
        "number-into-join",
        joined(x, y) * c,
        joined(x * c, y * c),
        [one_number(c)],
        samples=typed(_blocks),
    ),
    *(
        Rule(
            f"join-behind-{op.op_type.lower()}",
            op(joined(x, y), joined(z, w)),
            joined(op(x, z), op(y, w)),
            [part_by_part],
            samples=typed(drawn_parts),
        )
        for op in (onnx.Max, onnx.Min)
    ),
    Rule("nothing-left", a + (b + -1 * b), a, **REAL),
    Rule("sign", -a, -1 * a, **REAL),
    Rule("difference", a - b, a + -1 * b, **REAL),
    Rule("quotient", a / b, a * onnx.Reciprocal(b), **REAL),
    Rule(
        "inverse-of-a-product",
        onnx.Reciprocal(a * b),
        onnx.Reciprocal(a) * onnx.Reciprocal(b),
        **REAL,
    ),
)
