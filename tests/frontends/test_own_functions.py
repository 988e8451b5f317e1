"""A model's own functions go before operators of the standard with the same name."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

import tilewright as tw

X = np.array([-1, 2], np.float32)
HEADER = '<ir_version: 10, opset_import: ["" : 21, "my" : 1]> f (float[2] x) => (float[2] y) '
OWN = '<domain: "own", opset_import: ["" : 21]> '
ONE = "Constant <value_float> () => (b) { b = Constant<value_float = 1.0>() }"
BRANCH = "t () => (float[2] z) { z = Abs(x) }"
MODELS = {
    "called": ("{ y = Abs(x) }", "Abs (a) => (b) { b = Neg(a) }", -X),
    "in a branch": (
        "{ c = Constant<value = bool {1}>() "
        f"y = If(c)<then_branch = {BRANCH}, else_branch = {BRANCH.replace('t ()', 'e ()')}> }}",
        "Abs (a) => (b) { b = Neg(a) }",
        -X,
    ),
    "of what else is not a call": (
        "{ c = Constant<value_float = -1.0>() y = Mul(x, c) }",
        ONE,
        X,
    ),
    # ONNX has no recursion: the name inside means the standard's operator.
    "with its own name inside": ("{ y = Abs(x) }", "Abs (a) => (c) { b = Abs(a) c = Neg(b) }",
                                 -np.abs(X)),
    # What a standard operator is made of is of the standard.
    "in a standard operator": ("{ y = HardSwish(x) }", "HardSigmoid (a) => (b) { b = Neg(a) }",
                               X * np.clip(X / 6 + 0.5, 0, 1)),
}  # fmt: skip


def model_of(nodes: str, function: str, domain: str) -> Any:
    model = onnx.parser.parse_model(HEADER + nodes + OWN + function)
    model.functions[0].domain = domain  # the parser knows no function without one
    return model


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
@pytest.mark.parametrize("name", MODELS)
def test_a_function_with_the_name_of_an_operator(name: str, domain: str) -> None:
    nodes, function, expected = MODELS[name]
    found = tw.compile(model_of(nodes, function, domain), threads=1)(X)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
