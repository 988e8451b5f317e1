"""Fragile layers go back to floats: the fewest, the same ones each time, and by name."""

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tests.graph.quantize.models import RUNNER, drawn, graph_of, made, samples_for
from tilewright.base.errors import InputError
from tilewright.graph.quantize import QuantizationRecipe, quantize, sensitivity
from tilewright.graph.quantize.metrics import Agreement, compare, cosine
from tilewright.graph.quantize.sensitivity import switched
from tilewright.graph.verify import verify


def fragile():
    """Four products; the data of the third have one outlier that the rest cannot be told from."""
    spike = np.zeros(16, np.float32)
    spike[0] = 3000
    nodes = """
        a = MatMul(x, w0)  ar = Relu(a)  b = MatMul(ar, w1)  br = Tanh(b)
        bs = Add(br, spike)  c = MatMul(bs, w2)  cr = Relu(c)  y = MatMul(cr, w3)
    """
    w2 = drawn(2, 16, 16, scale=0.25)
    w2[0] = 0
    return graph_of(
        nodes, "float[6, 16] x) => (float[6, 5] y", spike=spike, w2=w2,
        w0=drawn(0, 16, 16, scale=0.25), w1=drawn(1, 16, 16, scale=0.25),
        w3=drawn(3, 16, 5, scale=0.25),
    )  # fmt: skip


def test_the_fragile_layer_alone_is_kept():
    graph = fragile()
    samples = samples_for(graph, 12)
    plain = quantize(graph, samples, QuantizationRecipe(), RUNNER)
    assert plain.report.agreement.drop > 0.1
    assert not plain.report.kept
    first, again = (
        quantize(graph, samples, QuantizationRecipe(), RUNNER, max_drop=0.1)
        for _ in range(2)
    )
    assert [layer.name for layer in first.report.kept] == ["MatMul -> c"]
    assert first.report.kept[0].why == "it exceeds the acceptable loss"
    assert first.report.agreement.drop <= 0.1
    assert first.report == again.report
    assert str(first.graph) == str(again.graph)
    costs = {layer.name: layer.cost for layer in first.report.layers}
    assert costs["MatMul -> c"] > 10 * max(
        cost for name, cost in costs.items() if name != "MatMul -> c"
    )


@pytest.mark.parametrize(
    ("max_drop", "recipe", "count"),
    [
        (None, QuantizationRecipe(), 2),  # observed, and in bytes
        (0.9, QuantizationRecipe(), 4),  # with switches, and with a layer in floats
        (None, QuantizationRecipe(equalize=True), 3),  # the float model is another one
        (None, QuantizationRecipe(correct_bias=True), 2),
        (0.9, QuantizationRecipe(correct_bias=True), 4),
    ],
)
def test_the_observed_model_is_the_float_model(max_drop, recipe, count):
    """It is compiled once, unless factors are moved in what is measured."""
    compiled = []

    def runner(graph):
        compiled.append(graph)
        return RUNNER(graph)

    graph = fragile()
    samples = samples_for(graph, 12)
    found = quantize(graph, samples, recipe, runner, max_drop=max_drop)
    assert len(compiled) == count
    held = samples[9:]
    pairs = ((RUNNER(graph)(s), RUNNER(found.graph)(s)) for s in held)
    assert found.report.agreement == compare(pairs)


@pytest.mark.parametrize("max_drop", [None, 1.0])
def test_agreement_is_that_with_the_model_as_given(max_drop):
    """Whose biases are not corrected."""
    graph = graph_of(
        "a = Gemm(x, w0, b) ar = Relu(a) y = MatMul(ar, w1)",
        "float[6, 16] x) => (float[6, 5] y",
        w0=drawn(0, 16, 16, scale=0.25), b=drawn(1, 16), w1=drawn(2, 16, 5),
    )  # fmt: skip
    samples = samples_for(graph, 12)
    how = QuantizationRecipe(correct_bias=True)
    found = quantize(graph, samples, how, RUNNER, max_drop=max_drop)
    plain, given = RUNNER(graph), RUNNER(found.graph)
    want = compare((plain(s), given(s)) for s in samples[9:])
    assert found.report.agreement == want


def test_what_is_written_is_measured_and_not_what_was_tried(monkeypatch):
    """Where trials are too hopeful, layers go back until the model itself keeps the limit."""
    monkeypatch.setattr(sensitivity, "_fewest", lambda trials, order, limit: 0)
    graph = fragile()
    report = quantize(
        graph, samples_for(graph, 12), QuantizationRecipe(), RUNNER, max_drop=0.1
    ).report
    assert report.agreement.drop <= 0.1
    assert [layer.name for layer in report.kept] == ["MatMul -> c"]


def test_no_drop_at_all_keeps_all_layers():
    graph = fragile()
    found = quantize(
        graph, samples_for(graph, 4), QuantizationRecipe(), RUNNER, max_drop=0.0
    )
    assert found.report.agreement.drop <= 1e-9
    assert len(found.report.kept) == 4
    assert [op.op_type for op in found.graph.operations] == [
        op.op_type for op in graph.operations
    ]


def test_layers_of_one_name_are_kept_together():
    graph = fragile()
    same = [replace(op, name="same") for op in graph.operations]
    graph = graph.with_operations(same)
    found = quantize(
        graph, samples_for(graph, 4), QuantizationRecipe(), RUNNER, max_drop=0.0
    )
    assert [layer.name for layer in found.report.kept] == ["same"] * 4


def test_switches_are_layers():
    graph = fragile()
    samples = samples_for(graph)
    model = made(graph, samples)
    trial, switches = switched(model)
    verify(trial)
    state = {v.name: np.array(False) for v in switches.values()}
    (off,) = RUNNER(trial)({**samples[0], **state}).values()
    (real,) = RUNNER(graph)(samples[0]).values()
    assert (off == real).all()
    state = {v.name: np.array(True) for v in switches.values()}
    (on,) = RUNNER(trial)({**samples[0], **state}).values()
    (whole,) = RUNNER(model.quantized())(samples[0]).values()
    assert np.allclose(on, whole, atol=1e-4)
    exe = tw.compile(trial, threads=1, cache=False)
    assert np.allclose(exe({**samples[0], **state}), whole, atol=1e-2)


def test_agreement():
    want = {"y": np.array([[1, 2], [4, 3]], np.float32)}
    assert compare([(want, want)]).drop == pytest.approx(0)
    other = {"y": np.array([[1, 2], [3, 4]], np.float32)}
    found = compare([(want, other)])
    assert found.top1 == 0.5 and found.rows == 2 and found.drop == 0.5
    encoded = compare([(want, other)], "cosine")
    assert encoded.top1 is None and 0 < encoded.drop < 0.05
    sequence = {"y": np.ones((1, 2, 3), np.float32)}
    assert compare([(sequence, sequence)]).top1 is None


@pytest.mark.parametrize(
    ("a", "b", "want"),
    [
        ([0, 0], [0, 0], 1),
        ([0, 0], [1, 0], 0),
        ([1, np.nan], [1, np.nan], 1),
        ([1, np.nan], [1, 1], 0),
        ([1, 0], [-1, 0], -1),
    ],
)
def test_cosine_of_odd_tensors(a, b, want):
    assert cosine(np.array(a, np.float32), np.array(b, np.float32)) == want


def test_one_sample_serves_both():
    graph = fragile()
    report = quantize(graph, samples_for(graph, 1), QuantizationRecipe(), RUNNER).report
    assert report.samples == 1 and report.held_out == 0
    assert "on the same data" in str(report)
    report = quantize(graph, samples_for(graph, 8), QuantizationRecipe(), RUNNER).report
    assert (report.samples, report.held_out) == (6, 2)


def test_the_face():
    graph = fragile()
    data = np.stack([s["x"] for s in samples_for(graph, 8)])
    made_, report = tw.quantize(graph, {"x": data}, max_drop=0.1, threads=1)
    assert report.agreement.drop <= 0.1
    y = tw.compile(made_, threads=1)(data[0])
    assert y.shape == (6, 5)
    with pytest.raises(InputError, match="quantize has no option luck"):
        tw.quantize(graph, {"x": data}, luck=3)
    with pytest.raises(InputError, match="metric='luck'"):
        tw.quantize(graph, {"x": data}, metric="luck")
    with pytest.raises(InputError, match="max_drop=2"):
        tw.quantize(graph, {"x": data}, max_drop=2)
    with pytest.raises(InputError, match="unknown option color"):
        tw.quantize(graph, {"x": data}, reading={"color": 1})


@pytest.mark.parametrize(("rows", "said"), [(1, "of 1 row,"), (1200, "of 1,200 rows,")])
def test_an_agreement_counts_its_rows(rows, said):
    assert said in str(Agreement(1.0, 0.5, rows))


BIASES = {
    "Conv": ("a = Conv(x, w, b) ar = Relu(a) y = Conv(ar, v)", "2, 3, 6, 6"),
    "Gemm": ("a = Gemm(x, w, b) ar = Relu(a) y = Gemm(ar, v)", "6, 12"),
    "MatMul": (
        "m = MatMul(x, w) a = Add(m, b) ar = Relu(a) n = MatMul(ar, v) y = Add(n, c)",
        "6, 12",
    ),
}


def with_biases(kind):
    """Two layers; the second Conv or Gemm has no bias of its own."""
    nodes, shape = BIASES[kind]
    taps = (3, 3) if kind == "Conv" else ()
    shapes = [(4, 3, *taps), (5, 4, *taps)] if taps else [(12, 4), (4, 5)]
    w, v = (drawn(n, *s, scale=0.3) for n, s in enumerate(shapes))
    w.reshape(-1)[0] = v.reshape(-1)[0] = 9  # so that the others are rounded coarsely
    more = {"c": drawn(4, 5)} if kind == "MatMul" else {}
    out = "2, 5, 2, 2" if taps else "6, 5"
    signature = f"float[{shape}] x) => (float[{out}] y"
    return graph_of(nodes, signature, w=w, v=v, b=drawn(3, 4), **more)


@pytest.mark.parametrize("kind", BIASES)
def test_a_layer_in_floats_has_the_float_models_bias(kind):
    """Kept by request, by name or by its loss: with all layers so, the model is as given."""
    graph = with_biases(kind)
    samples = samples_for(graph, 12)
    model = made(graph, samples, correct_bias=True)
    first, second = model.layers
    names = [first.name, second.name]
    (real,) = RUNNER(graph)(samples[0]).values()
    recipe = QuantizationRecipe(correct_bias=True)
    strict = quantize(graph, samples, recipe, RUNNER, max_drop=0.0)
    asked = quantize(graph, samples, recipe, RUNNER, keep=names)
    for found in (model.quantized(names), strict.graph, asked.graph):
        (ours,) = RUNNER(found)(samples[0]).values()
        assert (ours == real).all()
    both, one = model.quantized(), model.quantized([first.name])
    plain = made(graph, samples).quantized([first.name])
    results = [next(iter(RUNNER(g)(samples[0]).values())) for g in (both, one, plain)]
    assert not np.array_equal(results[0], results[1])
    assert not np.array_equal(results[1], results[2])  # the second is corrected


@pytest.mark.parametrize("kind", BIASES)
def test_switches_choose_biases_too(kind):
    """The trial with some layers in bytes is the model that would be written."""
    graph = with_biases(kind)
    samples = samples_for(graph)
    model = made(graph, samples, correct_bias=True)
    trial, switches = switched(model)
    verify(trial)
    run = RUNNER(trial)
    for kept in ([], *([n] for n in switches), list(switches)):
        state = {v.name: np.array(n not in kept) for n, v in switches.items()}
        (tried,) = run({**samples[0], **state}).values()
        (written,) = RUNNER(model.quantized(kept))(samples[0]).values()
        np.testing.assert_allclose(tried, written, atol=2e-2)
        if len(kept) == len(switches):
            assert (tried == written).all()
