"""Work on constants is compiled once for all the layers that need it, whatever their names are."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

import tilewright as tw
from tilewright.base.dtypes import DType, float32, float64
from tilewright.driver.prepare import PreparationCompiler, nameless
from tilewright.expr.nodes import Buffer, var
from tilewright.loops.nodes import Kernel, Store, loop

MODEL = """
<ir_version: 10, opset_import: ["" : 21]>
g (uint8[9, 31] x, uint8[9, 31] u) => (int32[9, 19] y, int32[9, 19] z) {
  y = MatMulInteger(x, v)
  a = MatMulInteger(u, w)
  z = Neg(a)
}
"""


def test_layers_share_the_kernel_that_packs_their_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    x, u = rng.integers(0, 9, (2, 9, 31), np.uint8)
    v, w = rng.integers(-9, 9, (2, 31, 19), np.int8)
    model = onnx.parser.parse_model(MODEL)
    model.graph.initializer.extend(
        [numpy_helper.from_array(v, "v"), numpy_helper.from_array(w, "w")]
    )
    made: list[Any] = []
    prepare = PreparationCompiler._artifact

    def noting(self: PreparationCompiler, kernel: Kernel) -> Any:
        made.append(prepare(self, kernel))
        return made[-1]

    monkeypatch.setattr(PreparationCompiler, "_artifact", noting)
    y, z = tw.compile(model, cache=False)(x, u)
    assert len(made) == 4  # of each layer its weights and their sums
    assert made[0] is made[2] and made[1] is made[3]
    np.testing.assert_array_equal(y, x.astype(int) @ v)
    np.testing.assert_array_equal(z, -(u.astype(int) @ w))


def packing(
    names: str = "i a b", *, offset: int = 0, dtype: DType = float32, notes: Any = None
) -> str:
    """The text of a kernel that copies, with these names of its loop and buffers."""
    i, a, b = names.split()
    source, result, v = Buffer(a, (9,), dtype), Buffer(b, (8,), dtype), var(i)
    body = loop(v, 8, Store(result, (v,), source[v + offset]))
    return nameless(Kernel("k", (source, result), (result,), body, notes or {}))


def test_only_names_are_left_out() -> None:
    same = packing()
    assert packing("float32 exp log") == packing("j c d") == same
    for other in (
        packing(offset=1),
        packing(dtype=float64),
        packing("float64 x y", dtype=float64, offset=1),
        packing(notes={"i": {"prefetch": 64}}),
    ):
        assert other != same
