"""A quantized model can be written for any runtime, whatever operators it has beside its layers."""

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import tilewright as tw
from tilewright.graph.quantize.metrics import cosine

RNG = np.random.default_rng(3)
W = (0.2 * RNG.standard_normal((4, 3, 3, 3))).astype(np.float32)
DOUBLED = {"s": np.array([1, 1, 2, 2], np.float32)}
STEPS = {
    "s": np.array([4, 2, 64], np.int64), "t": np.array([2, 4, 3, 1], np.int64),
    "g": RNG.standard_normal((1, 12, 64)).astype(np.float32),
    "r": RNG.standard_normal((1, 12, 3)).astype(np.float32),
}  # fmt: skip

# The opset, what is computed of a convolution's result, constants, and the number of layers.
BESIDE = {
    "Resize": (13, 'z = Resize<mode = "nearest">(a, , s)', DOUBLED, 1),
    "Resize of opset 10": (10, "z = Resize(a, s)", DOUBLED, 1),
    "Upsample": (9, "z = Upsample(a, s)", DOUBLED, 1),
    "Clip of opset 6": (9, "z = Clip<min = 0.0, max = 6.0>(a)", {}, 1),
    "LSTM": (
        14, "b = Reshape(a, s) c, d, e = LSTM<hidden_size = 3>(b, g, r) z = Reshape(c, t)",
        STEPS, 1,
    ),
    "ConvTranspose, which is a convolution": (
        17, "z = ConvTranspose<strides = [2, 2]>(a, k)",
        {"k": RNG.standard_normal((4, 5, 2, 2)).astype(np.float32)}, 2,
    ),
}  # fmt: skip


def model_of(opset, body, constants, rows="2"):
    nodes = f"a = Conv<pads = [1, 1, 1, 1]>(x, w) {body} y = Relu(z)"
    signature = f"(float[{rows}, 3, 8, 8] x) => (float[{rows}, c, h, v] y)"
    text = f'<ir_version: 8, opset_import: ["": {opset}]> m {signature} {{ {nodes} }}'
    model = onnx.parser.parse_model(text)
    for name, array in {"w": W, **constants}.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


@pytest.mark.parametrize("rows", ["2", "N"])
@pytest.mark.parametrize("name", BESIDE)
def test_what_is_quantized_is_written_as_onnx(name, rows):
    opset, body, constants, layers = BESIDE[name]
    model = model_of(opset, body, constants, rows)
    samples = [
        {"x": RNG.standard_normal((2, 3, 8, 8)).astype(np.float32)} for _ in "1234"
    ]
    dims = {"N": 2} if rows == "N" else None
    found = tw.quantize(model, samples, dims=dims, metric="cosine", threads=1)
    assert sum(layer.quantized for layer in found.report.layers) == layers
    written = tw.to_onnx(found.graph)
    onnx.checker.check_model(written, full_check=True)
    want = tw.compile(model, dims=dims, threads=1)(samples[0]["x"])
    got = tw.compile(written, threads=1)(samples[0]["x"])
    assert cosine(got, want) > 0.99
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(
        written.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    assert cosine(session.run(None, samples[0])[0], got) > 0.999


def test_products_inside_of_attention_are_layers():
    """ONNX Runtime's operator is decomposed, as ONNX has operators for all of its parts."""
    shapes = {"w": (16, 48), "b": (48,), "v": (16, 8)}
    arrays = {n: RNG.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    text = """<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
      m (float[1, 5, 16] x) => (float[1, 5, 8] y) {
        a = com.microsoft.Attention<num_heads = 2>(x, w, b, m)  y = MatMul(a, v)
      }"""
    arrays["m"] = np.array(
        [[1, 1, 1, 0, 0]], np.int32
    )  # the last two tokens are padding
    model = onnx.parser.parse_model(text)
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    samples = [
        {"x": RNG.standard_normal((1, 5, 16)).astype(np.float32)} for _ in "1234"
    ]
    found = tw.quantize(model, samples, metric="cosine", threads=1)
    assert sum(layer.quantized for layer in found.report.layers) == 2
    assert {o.domain for o in tw.to_onnx(found.graph).opset_import} == {""}
