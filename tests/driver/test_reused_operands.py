"""Results in the place of an operand that dies: only where no point reads what another wrote."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnx.reference
import pytest

import tilewright as tw

MODELS = {
    "plus its transpose": "r = Transpose<perm = [1, 0]>(t) u = Add(t, r)",
    "plus itself reversed": "r = Gather<axis = 0>(t, back) u = Add(t, r)",
    "under a condition elsewhere": "r = Transpose<perm = [1, 0]>(t) n = Less(r, t) "
    "k = Neg(t) u = Where(n, t, k)",
    "at the same place": "r = Sigmoid(t) u = Mul(t, r)",
    "read again later": "k = Neg(t) u = MatMul(k, t)",
    "read twice more": "k = Neg(t) r = MatMul(k, x) q = MatMul(r, t) u = Add(q, t)",
    "part of another": "p = Pad(t, pads) q = Slice(p, at, to) u = Add(t, q)",
}


@pytest.mark.parametrize("name", MODELS)
def test_an_operand_is_overwritten_only_where_it_is_read(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[16, 16] x) => (float[16, 16] y)
        <int64[16] back = {{15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0}},
        int64[4] pads = {{1, 1, 0, 0}}, int64[2] at = {{0, 0}}, int64[2] to = {{16, 16}}>
        {{ s = Softmax(x) t = MatMul(s, x) {MODELS[name]} y = MatMul(u, x) }}"""
    )
    monkeypatch.setenv("TILEWRIGHT_DEBUG", "1")
    x = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    (want,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    for _ in range(2):
        np.testing.assert_allclose(
            tw.compile(model, cache=False)(x), want, rtol=1e-4, atol=1e-6
        )
