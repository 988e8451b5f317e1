"""Models in QDQ form: where bytes are, what stays in floats, and that every runtime agrees."""

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tests.graph.quantize.models import (
    RUNNER,
    block,
    by_onnxruntime,
    drawn,
    errors,
    graph_of,
    made,
    model_of,
    perceptron,
    samples_for,
)
from tilewright.base.errors import InputError
from tilewright.driver.compile import text
from tilewright.frontends.onnx import load
from tilewright.frontends.onnx.export import operation_to_model, to_onnx
from tilewright.graph.quantize import QuantizationRecipe, quantize
from tilewright.graph.quantize.layers import find_layers
from tilewright.graph.verify import verify


@pytest.fixture(scope="module")
def network():
    graph = load(block())
    return graph, samples_for(graph)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("activations", ["uint8", "int8"])
@pytest.mark.parametrize("method", ["min-max", "mse"])
def test_runtimes_agree(network, activations, method):
    graph, samples = network
    model = made(graph, samples, activations=activations, method=method)
    found = model.quantized()
    verify(found)
    onnx.checker.check_model(to_onnx(found), full_check=True)
    sample = samples_for(graph, 9)[8]
    (want,) = by_onnxruntime(found, sample)
    (real,) = RUNNER(graph)(sample).values()
    # One rounding to the other side is a step of a tensor, about a hundredth of its peak.
    peak = np.abs(real).max()
    assert np.abs(want - real).max() < 0.05 * peak
    for math in ("default", "exact"):
        ours = tw.compile(found, threads=1, cache=False, math=math)(sample["x"])
        assert np.abs(ours - want).max() < 0.02 * peak


def test_bytes_are_where_they_are_exact(network):
    graph, samples = network
    found = made(graph, samples).quantized()
    producers = {v.name: op for op in found.operations for v in op.writes}
    before = {
        op.writes[0].name: [producers.get(v.name) for v in op.inputs if v is not None]
        for op in found.operations
    }

    def reads_bytes(name):
        return [
            op is not None and op.op_type == "DequantizeLinear" for op in before[name]
        ]

    assert reads_bytes("c") == [True, True, True]
    assert reads_bytes("p") == [True]  # pooling of bytes
    assert reads_bytes("s") == [False, True]  # the product stays real, the shortcut not
    assert reads_bytes("j") == [True, True]
    assert reads_bytes("m") == [False]  # nothing else needs it in bytes
    assert reads_bytes("y") == [True, True, True]
    scales = {v.name: a for v, a in found.constants.items() if "/scale" in v.name}
    assert scales["er/scale"] == scales["fr/scale"] == scales["j/scale"]
    assert scales["ar/scale"] == scales["p/scale"]
    whole = {v.name: a for v, a in found.constants.items() if "/quantized" in v.name}
    assert whole["w1/quantized"].dtype == np.int8
    assert whole["b1/quantized"].dtype == np.int32
    assert scales["w1/scale"].shape == (8,) and scales["w6/scale"].shape == (5,)


def test_the_compiler_computes_in_bytes(network):
    graph, samples = network
    found = made(graph, samples).quantized()
    shown = text(found, "computation", mcpu="sapphirerapids")
    products = shown.count("convinteger(") + shown.count("matmulinteger(")
    assert products == len(find_layers(graph)[0])


def test_averages_read_the_bytes_that_are_there():
    nodes = "r = Relu(x)  y = Conv(r, w)  m = GlobalAveragePool(r)"
    signature = "float[1, 2, 4, 4] x) => (float[1, 3, 4, 4] y, float[1, 2, 1, 1] m"
    graph = graph_of(nodes, signature, w=drawn(0, 3, 2, 1, 1))
    found = made(graph, samples_for(graph)).quantized()
    average = next(o for o in found.operations if o.op_type == "GlobalAveragePool")
    assert found.producer(average.inputs[0]).op_type == "DequantizeLinear"


def test_transposed_convolutions_are_convolutions():
    signature = "float[1, 2, 4, 4] x) => (float[1, 3, 6, 6] y"
    graph = graph_of("y = ConvTranspose(x, w)", signature, w=drawn(0, 2, 3, 3, 3))
    model = made(graph, samples_for(graph))
    assert [layer.op.op_type for layer in model.layers] == ["Conv"]
    sample = samples_for(graph)[0]
    (want,) = by_onnxruntime(model.quantized(), sample)
    ours = tw.compile(model.quantized(), threads=1, cache=False)(sample["x"])
    assert np.allclose(ours, want, atol=1e-4)


def test_a_tensor_is_quantized_once(network):
    graph, samples = network
    found = made(graph, samples).quantized()
    quantized = [
        op.inputs[0] for op in found.operations if op.op_type == "QuantizeLinear"
    ]
    assert max(Counter(quantized).values()) == 1


@pytest.mark.parametrize("opset", [13, 17, 21])
def test_opsets(opset):
    x = "float[3, 8] x) => (float[3, 6] y"
    graph = graph_of("y = MatMul(x, w)", x, opset, w=drawn(0, 8, 6))
    found = made(graph, samples_for(graph)).quantized()
    (want,) = by_onnxruntime(found, samples_for(graph)[0])
    ours = tw.compile(found, threads=1, cache=False)(samples_for(graph)[0]["x"])
    assert np.allclose(ours, want, atol=1e-5)


STAYS = {
    "its weights are computed": (
        "w = Relu(v)  y = MatMul(x, w)",
        "float[2, 4] x, float[4, 3] v) => (float[2, 3] y",
        {},
    ),
    "its data are constant": (
        "z = MatMul(c, w)  y = Add(x, z)",
        "float[100, 50] x) => (float[100, 50] y",
        {"c": drawn(0, 100, 4), "w": drawn(1, 4, 50)},
    ),
    "its weights are not finite": (
        "y = MatMul(x, w)",
        "float[2, 4] x) => (float[2, 3] y",
        {"w": np.full((4, 3), np.inf, np.float32)},
    ),
    "its weights are of rank 3, not a matrix": (
        "y = MatMul(x, w)",
        "float[2, 2, 4] x) => (float[2, 2, 3] y",
        {"w": drawn(0, 2, 4, 3)},
    ),
    "it transposes its data, or has an alpha or beta": (
        "y = Gemm<alpha = 0.5>(x, w)",
        "float[2, 4] x) => (float[2, 3] y",
        {"w": drawn(0, 4, 3)},
    ),
    "it computes in float64, not in float32": (
        "y = MatMul(x, w)",
        "double[2, 4] x) => (double[2, 3] y",
        {"w": drawn(0, 4, 3).astype(np.float64)},
    ),
    "its weights are empty": (
        "y = MatMul(x, w)",
        "float[2, 0] x) => (float[2, 3] y",
        {"w": drawn(0, 0, 3)},
    ),
}


@pytest.mark.parametrize("why", STAYS)
def test_what_stays_in_floats_is_named(why):
    nodes, signature, constants = STAYS[why]
    layers, skipped = find_layers(graph_of(nodes, signature, **constants))
    assert not layers
    assert [s.why for s in skipped] == [why]


def test_data_that_are_not_finite_stay_in_floats():
    nodes = "a = Div(x, z)  y = MatMul(a, w)"
    constants = {"z": np.array([1, 0, 1, 1], np.float32), "w": drawn(0, 4, 3)}
    graph = graph_of(nodes, "float[2, 4] x) => (float[2, 3] y", **constants)
    model = made(graph, samples_for(graph))
    assert [s.why for s in model.skipped] == ["its data are not finite"]
    assert not any("Quantize" in op.op_type for op in model.quantized().operations)


def test_layers_that_are_asked_for_stay_in_floats():
    graph = perceptron()
    name = next(op.label for op in graph.operations if op.op_type == "MatMul")
    found, report = quantize(
        graph, samples_for(graph), QuantizationRecipe(), RUNNER, keep=[name]
    )
    assert [(k.name, k.why) for k in report.kept] == [(name, "it was requested")]
    kept = next(op for op in found.operations if op.label == name)
    assert kept.inputs == next(op for op in graph.operations if op.label == name).inputs
    with pytest.raises(InputError, match="no layer 'nothing'"):
        quantize(
            graph, samples_for(graph), QuantizationRecipe(), RUNNER, keep=["nothing"]
        )


def test_a_bias_that_int32_does_not_hold_stays_real():
    constants = {"w": drawn(0, 4, 3), "b": np.full(3, 3e9, np.float32)}
    nodes = "y = Gemm(x, w, b)"
    graph = graph_of(nodes, "float[2, 4] x) => (float[2, 3] y", **constants)
    samples = samples_for(graph)
    found = made(graph, samples).quantized()
    gemm = found.operations[-1]
    assert gemm.inputs[2] in graph.constants
    assert errors(graph, found, samples) < 1e6  # of 9e18


def test_symbolic_batches_keep_their_names():
    graph = graph_of(
        "y = MatMul(x, w)", "float[N, 4] x) => (float[N, 3] y", w=drawn(0, 4, 3)
    )
    found = made(graph, [{"x": drawn(n, 2 + n, 4)} for n in range(3)]).quantized()
    assert found.inputs[0].shape == ("N", 4)
    exe = tw.compile(found, threads=1, cache=False)
    assert exe(drawn(9, 5, 4)).shape == (5, 3)


def test_names_are_not_taken_twice():
    nodes = "r = MatMul(x, w)  y = Add(r, x_quantized)"
    constants = {"w": drawn(0, 4, 3), "x_quantized": drawn(1, 3)}
    model = model_of(nodes, "float[2, 4] x) => (float[2, 3] y", **constants)
    for node in model.graph.node:
        node.input[:] = [n.replace("x_", "x/") for n in node.input]
    model.graph.initializer[1].name = "x/quantized"
    graph = load(model)
    found = made(graph, samples_for(graph)).quantized()
    names = [v.name for v in found.values]
    assert len(names) == len(set(names)) and "x/quantized.2" in names
    verify(found)


def test_a_quantized_model_has_nothing_left_to_quantize(network):
    graph, samples = network
    again = made(made(graph, samples).quantized(), samples)
    assert {s.why for s in again.skipped} == {"its weights are computed"}
    assert not again.layers


_PAIR = ("QuantizeLinear", "DequantizeLinear")


def slots(graph):
    """The operands that read dequantized bytes, by operation and number."""
    return {
        (op.writes[0].name, n)
        for op in graph.operations
        for n, v in enumerate(op.inputs)
        if v is not None
        and op.op_type not in _PAIR
        and (made_by := graph.producer(v)) is not None
        and made_by.op_type == "DequantizeLinear"
    }


_X = "float[1, 2, 4, 4] x) => (float[1, 3, H, W] y"
_PRODUCT = {("y", 0), ("y", 1)}
PLACES = {
    "a move whose operand is read in floats too": (
        "p = MaxPool<kernel_shape = [2, 2]>(x)  e = Exp(x)  y = Conv(p, w)",
        f"{_X}, float[1, 2, 4, 4] e",
        _PRODUCT,
    ),
    "a move whose operand a layer reads too": (
        "p = MaxPool<kernel_shape = [1, 1]>(x)  e = Conv(x, w)  y = Conv(p, w)",
        f"{_X}, float[1, 3, 4, 4] e",
        _PRODUCT | {("p", 0), ("e", 0), ("e", 1)},
    ),
    "a move with a second result": (
        "p, e = MaxPool<kernel_shape = [2, 2]>(x)  y = Conv(p, w)",
        f"{_X}, int64[1, 2, 3, 3] e",
        _PRODUCT,
    ),
    "a sum that broadcasts": (
        "m = ReduceMax<axes = [2, 3]>(x)  s = Add(x, m)  y = Conv(s, w)",
        _X,
        _PRODUCT,
    ),
    "a sum of one tensor with itself": ("s = Add(x, x)  y = Conv(s, w)", _X, _PRODUCT),
    "a sum with a constant": ("s = Add(x, c)  y = Conv(s, w)", _X, _PRODUCT),
    "a sum of two inputs": (
        "e = Exp(x)  s = Add(x, e)  r = Relu(s)  y = Conv(r, w)",
        _X,
        _PRODUCT | {("s", 0), ("s", 1)},
    ),
    "a sum of two products: the later one stays real": (
        "a = Conv(x, v)  b = Conv(x, u)  s = Add(b, a)  y = Conv(s, w)",
        _X,
        _PRODUCT | {("a", 0), ("a", 1), ("b", 0), ("b", 1), ("s", 1)},
    ),
    "a sum of a product that others read": (
        "a = Conv(x, v)  s = Add(a, x)  y = Conv(s, w)  e = Exp(a)",
        f"{_X}, float[1, 2, 4, 4] e",
        _PRODUCT | {("a", 0), ("a", 1), ("s", 0), ("s", 1)},
    ),
    "a clipped sum that others read": (
        "e = Exp(x)  s = Add(x, e)  r = Relu(s)  y = Conv(r, w)  t = Neg(s)",
        f"{_X}, float[1, 2, 4, 4] t",
        _PRODUCT,
    ),
    "a concatenation with a constant": (
        "s = Concat<axis = 1>(x, c)  y = Conv(s, k)",
        _X,
        _PRODUCT,
    ),
}


@pytest.mark.parametrize("name", PLACES)
def test_places(name):
    nodes, signature, want = PLACES[name]
    arrays = {
        "w": drawn(0, 3, 2, 1, 1), "v": drawn(1, 2, 2, 1, 1), "u": drawn(2, 2, 2, 1, 1),
        "c": drawn(3, 1, 2, 4, 4), "k": drawn(4, 3, 4, 1, 1),
    }  # fmt: skip
    used = {n: a for n, a in arrays.items() if f" {n})" in nodes}
    graph = graph_of(nodes, signature, **used)
    samples = samples_for(graph)
    found = made(graph, samples).quantized()
    verify(found)
    assert slots(found) == want
    real, whole = (RUNNER(g)(samples[0])["y"] for g in (graph, found))
    assert np.abs(real - whole).max() < 0.05 * np.abs(real).max()


def test_what_is_written_is_onnx_s_bit_for_bit(network):
    graph, samples = network
    rng = np.random.default_rng(0)
    tried = set()
    for activations in ("uint8", "int8"):
        found = made(graph, samples, activations=activations).quantized()
        for op in found.operations:
            whole = op.inputs[0] if op.op_type == "DequantizeLinear" else op.outputs[0]
            key = (op.op_type, whole.dtype, op.attributes.get("axis"))
            if op.op_type not in _PAIR or key in tried:
                continue
            tried.add(key)
            x = op.inputs[0]
            if x.dtype.is_float:
                data = (10 * rng.standard_normal(x.extents)).astype(np.float32)
            else:
                limits = np.iinfo(x.dtype.numpy)
                data = rng.integers(limits.min, limits.max, x.extents, x.dtype.numpy)
            known = {v: found.constants[v] for v in op.inputs[1:]}
            model = operation_to_model(op, known)
            model.ir_version, model.opset_import[0].version = 10, 21
            (want,) = ReferenceEvaluator(model).run(None, {x.name: data})
            ours = tw.compile(model, threads=1, cache=False)(data)
            assert ours.dtype == want.dtype and (ours == want).all()
    assert len(tried) >= 5
