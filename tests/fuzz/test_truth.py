"""What the judge of random graphs takes for right: a truth that jumps says nothing, a wrong one is
told."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

from tilewright.frontends.onnx import load
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph.nodes import Graph
from tilewright.testing.differential import ExpectedOutputs

# Ten times the float32 next to 0.7 is 7 in float32, and less in float64.
JUMP = "(float[4] x) => (float[4] y) { h = Mul(x, ten) f = Floor(h) y = Mul(f, ten) }"
CHAOS = (
    "(float[30] w) => (float[3] y) { x = Expand(one, three) y = Scan<num_scan_inputs = 1, "
    "body = b(float[3] s, float i) => (float[3] t) { a = Add(s, i) u = Mul(a, ten) t = Sin(u) }>"
    "(x, w) }"
)


def graph(text: str) -> Graph:
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 18]> f {text}'
    )
    number = np.float64 if "double" in text else np.float32
    for name, array in {
        "ten": number(10),
        "one": number(1),
        "three": np.array([3]),
    }.items():
        if name in text:
            model.graph.initializer.append(
                onnx.numpy_helper.from_array(np.asarray(array), name)
            )
    return load(model)


@pytest.mark.parametrize(("text", "extent"), [(JUMP, 4), (CHAOS, 30)])
def test_a_truth_that_jumps_is_none(text: str, extent: int) -> None:
    found = graph(text)
    (name,) = (v.name for v in found.inputs)
    inputs = {name: np.float32([0.3, 0.7, 0.1, 0.9] * 8)[:extent]}
    truth = ExpectedOutputs(found, inputs)
    assert truth._noise(0) > 0.5
    assert not truth.mismatches(truth.rounded[0])
    assert truth.mismatches(truth.rounded[0][:2])  # its shape is known


def test_a_truth_of_float64_that_jumps_is_none() -> None:
    found = graph(CHAOS.replace("float", "double"))
    w = np.array([0.3, 0.7, 0.1, 0.9, 0.5] * 6)
    truth = ExpectedOutputs(found, {"w": w})
    assert truth._noise(0) == 0
    other = ExpectedOutputs(found, {"w": w * (1 + 2.0**-52)})
    assert np.abs(other.rounded[0] - truth.rounded[0]).max() > 1e-3
    assert not truth.mismatches(other.rounded[0])
    assert truth.mismatches(np.full(3, np.nan))


def test_a_wrong_result_of_float64_is_told() -> None:
    found = graph("(double[4] x) => (double[4] y) { y = Sin(x) }")
    truth = ExpectedOutputs(found, {"x": np.array([0.3, 0.7, 0.1, 0.9])})
    (y,) = truth.rounded
    assert not truth.mismatches(y)
    assert "4 wrong values" in truth.mismatches(y + 1e-9)[0]


class Wrong(OnnxFallback):
    """Runs an operator that has no reference of ours wrongly, in float32 only."""

    def run(self, op: Any, arrays: Any) -> Any:
        by = 2 if arrays[0].dtype == np.float32 else 1
        return [np.abs(arrays[0]) * by]


def test_a_reference_that_is_wrong_in_one_type_is_told() -> None:
    found = graph(
        "(float[1, 1, 4] x) => (float[1, 1, 4] y) { y = LpPool<kernel_shape = [1]>(x) }"
    )
    truth = ExpectedOutputs(found, {"x": np.float32([[[0.3, 0.7, 0.1, 0.9]]])}, Wrong())
    (line,) = truth.mismatches(truth.rounded[0])
    assert "float64 and the model's own types are" in line
