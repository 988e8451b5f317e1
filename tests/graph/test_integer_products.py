"""Models in QDQ form: products of dequantised bytes are done on the bytes."""

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

import tilewright as tw
from tilewright.driver.compile import text

RNG = np.random.default_rng(3)
DOTS = "sapphirerapids"  # has dot products of bytes


def model_of(nodes: str, result: str, **constants: np.ndarray):
    """A model of `x`, which nodes take to `y`; its weights and parameters by name."""
    source = f'<ir_version: 10, opset_import: ["" : 21]> f ({result}) {{ {nodes} }}'
    model = onnx.parser.parse_model(source)
    arrays = (numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items())
    model.graph.initializer.extend(arrays)
    return model


def drawn(dtype, *shape):
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


SCALES = {"one": np.float32(0.02), "each": np.linspace(0.01, 0.05, 20, dtype=np.float32)}
DQ = "xr = DequantizeLinear(x, xs, xz)  wr = DequantizeLinear{axis}(w, ws, wz)"


@pytest.mark.parametrize("scales", ["one", "each"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_matrix_products(scales, dtype):
    ws = SCALES[scales]
    wz = drawn(dtype, *ws.shape)
    x, w = drawn(np.uint8, 6, 12), drawn(dtype, 12, 20)
    constants = {"w": w, "ws": ws, "wz": wz, "xs": np.float32(0.03), "xz": np.uint8(130)}
    nodes = DQ.format(axis="<axis = 1>") + " y = MatMul(xr, wr)"
    model = model_of(nodes, "uint8[6, 12] x) => (float[6, 20] y", **constants)
    assert "matmulinteger(" in text(model, "computation", mcpu=DOTS)
    assert "matmulinteger(" not in text(model, "computation", math="exact", mcpu=DOTS)
    assert "matmulinteger(" not in text(model, "computation", mcpu="x86-64-v3")
    total = (x.astype(np.int32) - 130) @ (w.astype(np.int32) - wz.astype(np.int32))
    want = total.astype(np.float32) * (np.float32(0.03) * ws)
    np.testing.assert_allclose(tw.compile(model, threads=1, cache=False)(x), want, rtol=1e-6)


@pytest.mark.parametrize("scales", ["one", "each"])
def test_convolutions_between_quantisers(scales):
    ws = SCALES[scales]
    x, w = drawn(np.uint8, 1, 6, 8, 8), drawn(np.int8, 20, 6, 3, 3)
    constants = {
        "w": w, "ws": ws, "wz": np.zeros(ws.shape, np.int8), "xs": np.float32(0.03),
        "xz": np.uint8(120), "ys": np.float32(0.5), "yz": np.uint8(128),
        "b": RNG.standard_normal(20).astype(np.float32),
    }  # fmt: skip
    nodes = DQ.format(axis="<axis = 0>") + " r = Conv<pads = [1, 1, 1, 1]>(xr, wr, b)"
    nodes += " y = QuantizeLinear(r, ys, yz)"
    model = model_of(nodes, "uint8[1, 6, 8, 8] x) => (uint8[1, 20, 8, 8] y", **constants)
    assert "convinteger(" in text(model, "computation", mcpu=DOTS)
    fast, exact = (
        tw.compile(model, threads=1, cache=False, math=m)(x).astype(int)
        for m in ("strict", "exact")
    )
    assert np.abs(fast - exact).max() <= 1  # where a sum in float32 rounds to the other side
    assert (fast != exact).mean() < 0.01


def test_sums_that_int32_does_not_hold_stay_real():
    x, w = drawn(np.uint8, 1, 40_000), drawn(np.int8, 40_000, 16)
    constants = {"w": w, "ws": np.float32(1), "wz": np.int8(0)}
    constants |= {"xs": np.float32(1), "xz": np.uint8(0)}
    nodes = DQ.format(axis="") + " y = MatMul(xr, wr)"
    model = model_of(nodes, f"uint8[{x.shape[0]}, 40000] x) => (float[1, 16] y", **constants)
    assert "matmulinteger(" not in text(model, "computation", mcpu=DOTS)
