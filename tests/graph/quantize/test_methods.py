"""Each method improves the case that it is for, and is refused where its condition fails."""

import numpy as np
import pytest

from tests.graph.quantize.models import (
    FALLBACK,
    RUNNER,
    drawn,
    errors,
    graph_of,
    made,
    perceptron,
    samples_for,
)
from tilewright.base.errors import InputError
from tilewright.graph.interp import evaluate
from tilewright.graph.quantize import QuantizationRecipe, factors
from tilewright.graph.quantize.affine import channel_scales, round_weights
from tilewright.graph.quantize.layers import find_layers
from tilewright.graph.quantize.migrate import migrated
from tilewright.graph.quantize.rounding import round_by_data
from tilewright.graph.quantize.statistics import (
    GramMatrix,
    Mean,
    columns_of,
    rows_of,
)


def with_constants(graph, **arrays):
    """The graph with other numbers in constants of these names."""
    swap = dict(graph.constants)
    for v in graph.constants:
        if v.name in arrays:
            swap[v] = np.asarray(arrays[v.name], np.float32)
    return graph.with_operations(graph.operations, swap)


def constant_of(graph, name):
    return next(a for v, a in graph.constants.items() if v.name == name)


def same(graph, other, tolerance=1e-4):
    for sample in samples_for(graph, 3):
        a = evaluate(graph, sample, fallback=FALLBACK)
        b = evaluate(other, sample, fallback=FALLBACK)
        for name, want in a.items():
            assert np.allclose(b[name], want, rtol=tolerance, atol=tolerance)


# ------------------------------------------------------------------- cross-layer equalization


def uneven(inner="Relu"):
    """A perceptron whose hidden channels differ by up to 1000 times, undone by the next layer."""
    graph = perceptron(inner=inner)
    by = np.geomspace(1 / 30, 30, 24).astype(np.float32)
    w0, b0, w1 = (constant_of(graph, n) for n in ("w0", "b0", "w1"))
    return with_constants(graph, w0=w0 * by, b0=b0 * by, w1=w1 / by[:, None])


def test_equalization_gives_channels_one_range():
    graph = uneven()
    found, left = factors.equalize(graph)
    same(graph, found)
    first, second = find_layers(found)[0]
    before = np.abs(found.constants[first.weight]).max(0)
    after = np.abs(found.constants[second.weight]).max(1)
    assert np.allclose(before, after, rtol=1e-3)
    assert left == {"x": "x is an input"}
    samples = samples_for(graph)
    plain, even = (made(graph, samples, equalize=e).quantized() for e in (False, True))
    assert errors(graph, even, samples) < 0.2 * errors(graph, plain, samples)


def test_equalization_of_convolutions():
    nodes = """
        a = Conv<pads = [1, 1, 1, 1]>(x, w0, b0)  r = LeakyRelu(a)
        d = Conv<group = 6>(r, w1, b1)  s = Relu(d)  p = MaxPool<kernel_shape = [2, 2]>(s)
        y = Conv<group = 2>(p, w2)
    """
    by = np.geomspace(0.01, 100, 6).astype(np.float32).reshape(-1, 1, 1, 1)
    graph = graph_of(
        nodes, "float[1, 3, 6, 6] x) => (float[1, 4, 5, 5] y",
        w0=drawn(0, 6, 3, 3, 3) * by, b0=drawn(1, 6), w1=drawn(2, 6, 1, 1, 1),
        b1=drawn(3, 6), w2=drawn(4, 4, 3, 1, 1),
    )  # fmt: skip
    found, left = factors.equalize(graph)
    assert set(left) == {"x"}
    sample = samples_for(graph)[0]
    a, b = (evaluate(g, sample, fallback=FALLBACK)["y"] for g in (graph, found))
    assert np.allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(a).max())
    ranges = [
        np.abs(columns_of(layer, found.constants[layer.weight])).max(1)
        for layer in find_layers(found)[0][:2]
    ]
    assert all(r.max() / r.min() < 500 for r in ranges)  # 10,000 before


@pytest.mark.parametrize("inner", ["Sigmoid", "Tanh", "Softplus"])
def test_no_factor_goes_through_what_is_not_homogeneous(inner):
    graph = uneven(inner)
    found, left = factors.equalize(graph)
    assert "takes no factor" in left["r"]
    same(graph, found, 0)


TAKES_NONE = {
    "r is an output of the model": (
        "h = MatMul(x, w0)  r = Relu(h)  y = MatMul(r, w1)",
        "float[3, 4] x) => (float[3, 2] y, float[3, 5] r",
    ),
    "others read h": (
        "h = MatMul(x, w0)  r = Relu(h)  t = Exp(h)  z = MatMul(r, w1)"
        "  s = ReduceSum(t)  y = Add(z, s)",
        "float[3, 4] x) => (float[3, 2] y",
    ),
    "Clip -> r takes no factor": (
        "h = MatMul(x, w0)  r = Clip(h, low, high)  y = MatMul(r, w1)",
        "float[3, 4] x) => (float[3, 2] y",
    ),
    "Add -> r adds a computed operand": (
        "h = MatMul(x, w0)  e = Exp(h)  r = Add(e, e)  y = MatMul(r, w1)",
        "float[3, 4] x) => (float[3, 2] y",
    ),
    "Add -> r broadcasts": (
        "h = MatMul(x, w0)  s = ReduceMax<axes = [1]>(h)  r = Add(s, c)"
        "  y = MatMul(r, w1)",
        "float[3, 4] x) => (float[3, 2] y",
    ),
    "Mul -> r has no constant factor": (
        "h = MatMul(x, w0)  e = Exp(h)  r = Mul(e, h)  y = MatMul(r, w1)",
        "float[3, 4] x) => (float[3, 2] y",
    ),
    "LayerNormalization -> r has no constant scale along the axis": (
        "h = MatMul(x, w0)  r = LayerNormalization<axis = 0>(h, g)  y = MatMul(r, w1)",
        "float[3, 4] x) => (float[3, 2] y",
    ),
}


@pytest.mark.parametrize("why", TAKES_NONE)
def test_factors_are_refused(why):
    nodes, signature = TAKES_NONE[why]
    arrays = {
        "w0": drawn(0, 4, 5), "w1": drawn(1, 5, 2), "c": drawn(2, 5),
        "low": np.float32(-1), "high": np.float32(1), "g": drawn(3, 3, 5),
    }  # fmt: skip
    used = {n: a for n, a in arrays.items() if n in nodes.replace(",", " , ")}
    graph = graph_of(nodes, signature, **used)
    layers = {layer.op: layer for layer in find_layers(graph)[0]}
    reader = next(la for la in layers.values() if la.data.name == "r")
    made_ = migrated(graph, [reader], np.linspace(0.5, 2, 5), layers)
    assert made_ == why


@pytest.mark.parametrize(
    "recipe", [{"equalize": True}, {"smooth": 0.5}, {"search": True}], ids=str
)
def test_readers_with_other_channels_take_no_factor(recipe):
    """A convolution's channels are the second axis of what it reads, a product's the last."""
    nodes = "h = Conv(x, u)  y = Conv(h, v)  z = MatMul(h, w)"
    signature = "float[1, 2, 5, 5] x) => (float[1, 3, 5, 5] y, float[1, 4, 5, 3] z"
    weights = {
        "u": drawn(0, 4, 2, 1, 1),
        "v": drawn(1, 3, 4, 1, 1),
        "w": drawn(2, 5, 3),
    }
    graph = graph_of(nodes, signature, **weights)
    model = made(graph, samples_for(graph), **recipe)
    (notes,) = model.notes.values()
    assert notes["h"] == "the readers of h disagree on its axis of channels"
    same(graph, model.graph, 0)


TAKES_ONE = {
    "norm": "h = MatMul(x, w0)  r = LayerNormalization(h, g, c)  y = MatMul(r, w1)",
    "product": "h = Exp(x)  r = Mul(h, d)  y = MatMul(r, w2)",
    "quotient": "h = Exp(x)  r = Div(h, d)  y = MatMul(r, w2)",
    "difference": "h = MatMul(x, w0)  r = Sub(c, h)  y = MatMul(r, w1)",
    "scalar": "h = MatMul(x, w0)  r = Add(h, one)  y = MatMul(r, w1)",
    "gemm": "r = Gemm<transB = 1>(x, w3, c)  y = Gemm<transB = 1>(r, w4)",
}


@pytest.mark.parametrize("nodes", TAKES_ONE.values(), ids=TAKES_ONE)
def test_factors_change_no_result(nodes):
    arrays = {
        "w0": drawn(0, 4, 5), "w1": drawn(1, 5, 2), "w2": drawn(2, 4, 2), "c": drawn(3, 5),
        "d": drawn(4, 4), "one": np.float32(1), "g": drawn(5, 5), "w3": drawn(6, 5, 4),
        "w4": drawn(7, 2, 5),
    }  # fmt: skip
    used = {n: a for n, a in arrays.items() if f" {n}" in nodes.replace("(", " ")}
    graph = graph_of(nodes, "float[3, 4] x) => (float[3, 2] y", **used)
    layers = {layer.op: layer for layer in find_layers(graph)[0]}
    reader = next(la for la in layers.values() if la.data.name == "r")
    found = migrated(
        graph, [reader], np.geomspace(0.1, 10, 4 + ("w2" not in used)), layers
    )
    assert not isinstance(found, str), found
    same(graph, found)
    name = reader.data.name
    a, b = (
        evaluate(
            g, samples_for(graph)[0], fallback=FALLBACK, keep=lambda v: v.name == name
        )
        for g in (graph, found)
    )
    assert not np.allclose(a[name], b[name])


# -------------------------------------------------------------------- SmoothQuant and AWQ


def outliers():
    """A normalization with a few channels a hundred times the others, read by two products."""
    nodes = (
        "n = LayerNormalization(x, g, c)  q = MatMul(n, wq)  k = MatMul(n, wk)"
        "  y = Mul(q, k)"
    )
    g = np.ones(32, np.float32)
    g[[3, 17]] = 100
    return graph_of(
        nodes, "float[8, 32] x) => (float[8, 16] y",
        g=g, c=drawn(1, 32), wq=drawn(2, 32, 16, scale=0.2), wk=drawn(3, 32, 16, scale=0.2),
    )  # fmt: skip


def test_smoothing_moves_outliers():
    graph = outliers()
    samples = samples_for(graph)
    plain = made(graph, samples).quantized()
    smooth = made(graph, samples, smooth=0.5)
    same(graph, smooth.graph, 1e-3)
    assert smooth.notes["smooth"] == {}
    assert errors(graph, smooth.quantized(), samples) < 0.3 * errors(
        graph, plain, samples
    )


def test_the_strength_says_how_much_moves():
    graph = outliers()
    readers = find_layers(graph)[0]
    seen = np.linspace(1, 32, 32)
    seen[5] = 0  # a channel without data keeps its weights
    weights = factors.input_ranges(graph, readers)
    for strength in (0, 0.3, 0.8, 1):
        found = factors.smooth_by({"n": seen}, strength)(graph, readers)
        want = seen**strength / weights ** (1 - strength)
        want[5] = 1
        assert np.allclose(found, want)


def test_smoothing_needs_a_strength():
    for strength in (-0.1, 1.1, float("nan")):
        with pytest.raises(InputError, match="smooth="):
            QuantizationRecipe(smooth=strength)


def test_the_search_lessens_what_rounded_weights_lose():
    graph = outliers()
    samples = samples_for(graph)
    found = made(graph, samples, search=True)
    same(graph, found.graph, 1e-3)
    plain = made(graph, samples)
    x = np.concatenate([RUNNER(graph)(s)["y"].reshape(1, -1) for s in samples])
    assert x.size  # the data flow

    def lost(model):
        """Of the products alone, with data in floats."""
        total = 0.0
        for layer in model.layers:
            gram = GramMatrix(layer)
            for s in samples:
                kept = evaluate(
                    model.graph, s, fallback=FALLBACK, keep=lambda v: v is layer.data
                )
                gram.see(kept[layer.data.name])
            w = model.graph.constants[layer.weight]
            off = columns_of(layer, model.weights[layer.op].real - w)
            total += np.einsum("ij,jk,ik->", off, gram.matrix, off)
        return total

    assert lost(found) < 0.8 * lost(plain)


def test_the_search_regards_what_smoothing_left(monkeypatch):
    graph = outliers()
    samples = samples_for(graph)
    given = {}

    def search_by(largest, grams):
        given.update(largest)
        return lambda graph, readers: None

    monkeypatch.setattr(factors, "search_by", search_by)
    model = made(graph, samples, smooth=0.5, search=True)
    for layer in model.layers:
        seen = [
            evaluate(model.graph, s, fallback=FALLBACK, keep=lambda v: v is layer.data)
            for s in samples
        ]
        data = np.concatenate([kept[layer.data.name] for kept in seen])
        np.testing.assert_array_equal(given[layer.data.name], np.abs(data).max(0))


# ------------------------------------------------------------------------------------- GPTQ


def correlated(rows, terms, seed=0):
    mix = drawn(seed, terms // 4, terms)
    return drawn(seed + 1, rows, terms // 4) @ mix + 0.1 * drawn(seed + 2, rows, terms)


def test_rounding_by_data_loses_less():
    graph = graph_of(
        "y = MatMul(x, w)", "float[500, 32] x) => (float[500, 8] y", w=drawn(0, 32, 8)
    )
    (layer,) = find_layers(graph)[0]
    x = correlated(500, 32)
    gram = GramMatrix(layer)
    gram.see(x)
    w = graph.constants[layer.weight]
    near, by_data = round_weights(w, 1), round_by_data(layer, w, gram.matrix)
    assert (by_data.scales == channel_scales(w, 1)).all()

    def lost(found):
        return float(((x @ (w - found.real)) ** 2).mean())

    assert lost(by_data) < 0.5 * lost(near)


@pytest.mark.representatives("1", "150")  # one block, and one more that is not full
@pytest.mark.parametrize("terms", [1, 127, 128, 150])
def test_blocks_round_as_one_input_after_another(terms):
    """As the method is published, each rounding being made good in all that are still real."""
    graph = graph_of(
        "y = MatMul(x, w)", f"float[N, {terms}] x) => (float[N, 3] y",
        w=drawn(0, terms, 3),
    )  # fmt: skip
    (layer,) = find_layers(graph)[0]
    x = drawn(1, 2 * terms, terms) @ drawn(2, terms, terms) / terms**0.5
    gram = (x.T @ x).astype(np.float64)
    w = graph.constants[layer.weight].astype(np.float64)
    damped = gram + 0.01 * np.trace(gram) / terms * np.eye(terms)
    left, want = w.copy(), np.empty_like(w)
    scales = channel_scales(graph.constants[layer.weight], 1).astype(np.float64)
    for n in range(terms):
        rest = np.linalg.inv(damped[n:, n:])
        want[n] = np.clip(np.rint(left[n] / scales), -127, 127)
        error = (left[n] - want[n] * scales) / rest[0, 0]
        left[n:] -= np.outer(rest[:, 0], error)
    found = round_by_data(layer, graph.constants[layer.weight], gram)
    assert (found.whole != want).mean() < 0.01  # ties may fall to the other side


def test_rounding_by_data_without_correlation_is_to_nearest():
    graph = graph_of(
        "y = MatMul(x, w)", "float[4, 32] x) => (float[4, 8] y", w=drawn(0, 32, 8)
    )
    (layer,) = find_layers(graph)[0]
    w = graph.constants[layer.weight]
    for gram in (np.eye(32), np.zeros((32, 32))):
        found = round_by_data(layer, w, gram)
        assert (found.whole == round_weights(w, 1).whole).all()


@pytest.mark.parametrize(
    "attributes",
    [
        "pads = [1, 0, 2, 1]",
        "strides = [2, 1]",
        "dilations = [1, 2], pads = [0, 1, 0, 1]",
    ],
)
def test_rows_are_the_windows(attributes):
    graph = graph_of(
        f"y = Conv<{attributes}>(x, w)",
        "float[2, 3, 7, 8] x) => (float[2, 4, H, W] y", w=drawn(0, 4, 3, 3, 2),
    )  # fmt: skip
    (layer,) = find_layers(graph)[0]
    sample = samples_for(graph)[0]
    want = evaluate(graph, sample, fallback=FALLBACK)["y"]
    columns = columns_of(layer, graph.constants[layer.weight])
    found = (rows_of(layer, sample["x"]) @ columns.T).reshape(2, *want.shape[2:], 4)
    assert np.allclose(found.transpose(0, 3, 1, 2), want, atol=1e-4)


def test_gptq_of_a_model():
    graph = graph_of(
        "y = MatMul(x, w)", "float[64, 32] x) => (float[64, 8] y", w=drawn(0, 32, 8)
    )
    samples = [{"x": correlated(64, 32)} for _ in range(4)]
    near, by_data = (
        made(graph, samples, rounding=w).quantized() for w in ("nearest", "gptq")
    )
    assert errors(graph, by_data, samples) < errors(graph, near, samples)
    with pytest.raises(InputError, match="rounding='luck'"):
        QuantizationRecipe(rounding="luck")


# --------------------------------------------------------------------------------- bias


@pytest.mark.parametrize("kind", ["Conv", "Gemm", "MatMul"])
def test_bias_correction_removes_the_mean_error(kind):
    # Data of one sign: an error of weights does not cancel.
    nodes, shape, w = {
        "Conv": ("y = Conv<pads = [1, 1, 1, 1]>(x, w)", "2, 3, 6, 6", (4, 3, 3, 3)),
        "Gemm": ("y = Gemm(x, w, b)", "6, 12", (12, 4)),
        "MatMul": ("z = MatMul(x, w)  y = Add(z, b)", "6, 12", (12, 4)),
    }[kind]
    out = "2, 4, 6, 6" if kind == "Conv" else "6, 4"
    more = {} if kind == "Conv" else {"b": drawn(2, 4)}
    weights = drawn(0, *w)
    weights.reshape(-1)[0] = 20  # so that the others are rounded coarsely
    graph = graph_of(nodes, f"float[{shape}] x) => (float[{out}] y", w=weights, **more)
    samples = [{"x": 3 + drawn(n, *graph.inputs[0].extents)} for n in range(8)]
    axes = (0, 2, 3) if kind == "Conv" else (0,)

    def bias(found):
        off = [RUNNER(found)(s)["y"] - RUNNER(graph)(s)["y"] for s in samples]
        return np.abs(np.mean(off, 0).mean(axes)).max()

    plain, better = (
        made(graph, samples, correct_bias=c).quantized() for c in (False, True)
    )
    assert bias(better) < 0.4 * bias(plain)


def test_a_layer_without_a_bias_is_named():
    graph = graph_of(
        "z = MatMul(x, w)  y = Relu(z)", "float[6, 12] x) => (float[6, 4] y",
        w=drawn(0, 12, 4),
    )  # fmt: skip
    model = made(graph, samples_for(graph), correct_bias=True)
    assert list(model.notes["correct_bias"].values()) == ["it has no bias to correct"]


def test_means_are_over_all_rows():
    mean = Mean()
    mean.see(np.ones((2, 3), np.float32))
    mean.see(np.zeros((1, 3), np.float32))
    ((found, rows),) = mean.means
    assert np.allclose(found, 2 / 3) and rows == 3


@pytest.mark.parametrize(
    "shapes",
    [[(12,)] * 3, [(3, 12), (7, 12)], [(1, 3, 12), (1, 7, 12), (1, 3, 12)]],
)
def test_biases_are_corrected_for_data_of_any_shape(shapes):
    """What is added is the mean over all rows, however they come."""
    dims = ", ".join(["N", "S", "12"][-len(shapes[0]) :])
    graph = graph_of(
        "z = MatMul(x, w)  y = Add(z, b)", f"float[{dims}] x) => (float y",
        w=drawn(0, 12, 4), b=drawn(1, 4),
    )  # fmt: skip
    samples = [{"x": drawn(n, *s) + 1} for n, s in enumerate(shapes)]
    model = made(graph, samples, correct_bias=True)
    (layer,) = model.layers
    lost = drawn(0, 12, 4) - model.weights[layer.op].real
    rows = np.concatenate([s["x"].reshape(-1, 12) for s in samples])
    want = drawn(1, 4) + (rows @ lost).mean(0)
    np.testing.assert_allclose(bias_of(model.quantized()), want, atol=1e-5)
    np.testing.assert_array_equal(bias_of(model.quantized([layer.name])), drawn(1, 4))


def bias_of(graph):
    """The constant that the graph's only Add adds."""
    (add,) = (op for op in graph.operations if op.op_type == "Add")
    (bias,) = (v for v in add.inputs if v in graph.constants)
    return graph.constants[bias]


def test_what_beta_would_scale_gets_no_bias():
    graph = graph_of(
        "y = Gemm<beta = 0.5>(x, w)", "float[6, 12] x) => (float[6, 4] y",
        w=drawn(0, 12, 4),
    )  # fmt: skip
    model = made(graph, samples_for(graph), correct_bias=True)
    assert list(model.notes["correct_bias"].values()) == ["it has no bias to correct"]
    same(graph, model.graph, 0)
