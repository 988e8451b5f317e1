"""The memory of a model, told before it is compiled."""

from __future__ import annotations

import onnx.parser
import pytest

from tilewright.driver import text

NET = """<ir_version: 10, opset_import: ["" : 21]>
net (float[64, 256] x, float[256, 256] w) => (float[64, 256] y) {
  a = MatMul(x, w)
  b = MatMul(a, w)
  c = MatMul(b, w)
  y = Add(c, a)
}"""


def test_the_fullest_step_and_what_is_alive_there() -> None:
    found = text(onnx.parser.parse_model(NET), "memory").splitlines()
    assert found[0].split() == ["constants", "0", "B"]
    assert found[1].endswith("384 KiB")  # x, w and y
    assert found[2].split("at most")[1].strip() == "128 KiB"
    assert found[3].split("arena")[1].strip() == "128 KiB"
    assert "has the peak:" in found[5]
    assert sum("float32[64, 256]" in line for line in found[6:]) == 2


@pytest.mark.parametrize("shape", ["0", "4"])
def test_one_that_keeps_nothing(shape: str) -> None:
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21]>\n'
        f"f (float[{shape}] x) => (float[{shape}] y) {{ y = Relu(x) }}"
    )
    found = text(model, "memory").splitlines()
    assert len(found) == 4 and found[3].split()[-2:] == ["0", "B"]
