"""Stages of models with symbolic dimensions, as text."""

from __future__ import annotations

import onnx.parser
import pytest

from tilewright.base.errors import InputError
from tilewright.driver import text

MODEL = """
<ir_version: 10, opset_import: ["" : 17]>
s (float[n, 64] x) => (float[n, 64] y) { y = Relu(x) }"""


@pytest.mark.parametrize("kind", ["computation", "kernel", "llvm", "asm"])
def test_a_symbolic_dimension_needs_a_value_behind_the_graph(kind):
    model = onnx.parser.parse_model(MODEL)
    assert "x: float32[n, 64]" in text(model, "graph")
    assert "x: float32[3, 64]" in text(model, "graph", dims={"n": 3})
    with pytest.raises(InputError, match="the shape of 'x' is symbolic"):
        text(model, kind)
    assert "relu" in text(model, kind, dims={"n": 3})
