"""Sums, products and signs of elements."""

from __future__ import annotations

from tilewright.graph.rules.patterns import (
    onnx,
    reals,
    tensors,
)
from tilewright.graph.rules.rule import Rule
from tilewright.graph.rules.substitutions.rows import (
    REAL,
    ROUNDED,
    both,
)

x, y, z = tensors("x y z")
a, b, c = reals("a b c")

# Commutative operators try their operands in both orders, so one association is enough.
SUMS = (
    Rule(
        "sum-in-another-order",
        (x + y) + z,
        x + (y + z),
        **ROUNDED,
    ),
    Rule(
        "product-in-another-order",
        (x * y) * z,
        x * (y * z),
        **ROUNDED,
    ),
    *both(
        "factor-of-a-sum",
        "product-with-a-sum",
        x * y + x * z,
        x * (y + z),
        agree=REAL,
    ),
    *both(
        "factor-of-a-difference",
        "product-with-a-difference",
        x * y - x * z,
        x * (y - z),
        agree=REAL,
    ),
    *both(
        "one-more-times",
        "times-a-sum-with-one",
        x * y + x,
        x * (y + 1),
        agree=REAL,
    ),
    *both(
        "quotients-of-one-divisor",
        "quotient-of-a-sum",
        a / c + b / c,
        (a + b) / c,
        agree=REAL,
    ),
    *both("difference-as-sum", "sum-as-difference", a - b, a + -b, agree={}),
    *both("difference-in-two", "two-differences", x - (y + z), (x - y) - z),
    *both("sum-of-a-difference", "difference-of-a-sum", (x - y) + z, (x + z) - y),
    *both("sign-into-product", "sign-out-of-product", -(x * y), -x * y, agree={}),
    *both("sign-of-a-difference", "exchanged-difference", -(a - b), b - a),
    Rule("two-signs-in-a-product", -x * -y, x * y),
    Rule("two-signs", onnx.Neg(-x), x),
    Rule("minus-a-sign", x - -y, x + y),
    *both(
        "product-of-quotients",
        "quotient-of-a-product",
        (a / c) * b,
        (a * b) / c,
    ),
    Rule(
        "quotient-of-a-quotient",
        (a / b) / c,
        a / (b * c),
        **ROUNDED,
    ),
    *both(
        "product-of-exponentials",
        "exponential-of-a-sum",
        onnx.Exp(a) * onnx.Exp(b),
        onnx.Exp(a + b),
    ),
    *both(
        "product-of-absolutes",
        "absolute-of-a-product",
        onnx.Abs(a) * onnx.Abs(b),
        onnx.Abs(a * b),
        agree={},
    ),
)
