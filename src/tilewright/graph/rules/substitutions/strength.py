"""Operators replaced by cheaper ones."""

from __future__ import annotations

import numpy as np

from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import (
    Attribute,
    Computed,
    Tensor,
    constants,
    onnx,
    reals,
    tensors,
)
from tilewright.graph.rules.rule import Rule
from tilewright.graph.rules.substitutions.drawing import (
    RandomGraph,
)
from tilewright.graph.rules.substitutions.rows import (
    REAL,
    ROUNDED,
    both,
    typed,
)

(x, y) = tensors("x y")
(a, b) = reals("a b")
c = Tensor("c", known=True, real=True)


def _powers_of_two(m: Match) -> bool:
    """c and 1 / c contain only powers of two"""
    mantissa, _ = np.frexp(m.array(c).astype(np.float64))
    return bool(np.all(np.abs(mantissa) == 0.5)) and _moderate(m)


def _inverse(m: Match) -> object:
    found = m.array(c)
    with np.errstate(all="ignore"):
        return (1 / found.astype(np.float64)).astype(found.dtype)


def _moderate(m: Match) -> bool:
    """the magnitude of c is from 2**-14 to 2**14, so that 1 / c is normal even in float16"""
    found = np.abs(m.array(c).astype(np.float64))
    return bool(np.all((found >= 2.0**-14) & (found <= 2.0**14)))


INVERSE = Computed("(1 / c)", _inverse)


def _divisors(draw: RandomGraph) -> dict[object, object]:
    shape = (draw.extent(2), draw.extent(2))
    exponents = draw.rng.integers(-3, 4, shape[1:])
    drawn = 2.0**exponents
    if draw.maybe(0.4):
        drawn = draw.rng.integers(1, 9, shape[1:]).astype(float)
    if draw.maybe(0.2):
        drawn = drawn * draw.one_of(0.0, 1e-40)
    return {a: shape, c: drawn.astype(draw.dtype.numpy)}


# ------------------------------------------------------------------------------------------ means

axes = constants("axes")[0]
keep = Attribute("keepdims", examples=(0, 1), default=1)
# If both types agree, an axis that only one side averages has one element.
mean = onnx.ReduceMean(x, axes, keepdims=keep)


def _means(draw: RandomGraph) -> dict[object, object]:
    rank = draw.one_of(2, 3, 4)
    shape = tuple(draw.extent(2, 3) for _ in range(rank))
    over = list(range(2, rank))
    if draw.maybe(0.3):
        over = [int(draw.rng.integers(rank))]
    return {
        x: shape,
        axes: np.array(over),
        keep: draw.one_of(0, 1, 1),
    }


def _behind_the_second(m: Match) -> object:
    return np.arange(2, len(m[x].extents))


AXES = Computed("[2, ...]", _behind_the_second)

STRENGTH = (
    Rule("square", a**2, a * a),
    Rule("cube", a**3, a * (a * a), **ROUNDED),
    Rule("power-of-one", a**1, a),
    Rule("inverse-as-power", a**-1, onnx.Reciprocal(a), **ROUNDED),
    Rule("root-as-power", a**0.5, onnx.Sqrt(a), **REAL),
    Rule(
        "inverse-root-as-power",
        a**-0.5,
        onnx.Reciprocal(onnx.Sqrt(a)),
        **REAL,
    ),
    *both(
        "one-over",
        "inverse",
        1 / a,
        onnx.Reciprocal(a),
        agree={},
    ),
    Rule(
        "times-an-inverse",
        b * onnx.Reciprocal(a),
        b / a,
        **ROUNDED,
    ),
    Rule(
        "root-of-a-square",
        onnx.Sqrt(a * a),
        onnx.Abs(a),
        **ROUNDED,
    ),
    Rule(
        "quotient-by-powers-of-two",
        a / c,
        onnx.Mul(a, INVERSE),
        when=[_powers_of_two],
        samples=typed(_divisors),
    ),
    Rule(
        "quotient-by-a-constant",
        a / c,
        onnx.Mul(a, INVERSE),
        when=[_moderate],
        samples=typed(_divisors),
        **ROUNDED,
    ),
    Rule(
        "mean-of-an-image",
        mean,
        onnx.GlobalAveragePool(x),
        samples=typed(_means),
        **ROUNDED,
    ),
    Rule(
        "average-pool-as-mean",
        onnx.GlobalAveragePool(x),
        onnx.ReduceMean(x, AXES, keepdims=1),
        samples=typed(_means),
        **ROUNDED,
    ),
)
