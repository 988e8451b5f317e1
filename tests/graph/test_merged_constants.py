"""Which equal constants become one."""

from __future__ import annotations

import numpy as np
import onnx.parser
from onnx import numpy_helper

from tilewright.frontends.onnx.load import load
from tilewright.graph.passes.simplify import merge_repeated


def test_equal_constants_are_one_only_if_they_may_be() -> None:
    """Those of two sizes of a range are equal at some sizes alone."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> f (float[2] x) => (float[2] y) '
        "{ a = Div(x, c) b = Div(x, d) e = Div(x, g) h = Sub(a, b) y = Sub(h, e) }"
    )
    for name in "cdg":
        number = numpy_helper.from_array(np.float32(3), name)
        model.graph.initializer.append(number)
    graph = load(model)
    asked: list[tuple[str, str]] = []

    def merged(one: str, other: str) -> bool:
        asked.append((one, other))
        return other == "g"

    found = merge_repeated(graph, merged)
    assert asked == [("c", "d"), ("c", "g")]
    reads = [op.reads[1].name for op in found.operations if op.op_type == "Div"]
    assert reads == ["c", "d"]
