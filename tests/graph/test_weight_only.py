"""Weight-only quantization: what it writes, that other runtimes read it, what it leaves alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tilewright as tw
from tilewright.base import events
from tilewright.base.errors import InputError
from tilewright.frontends.onnx import load
from tilewright.frontends.onnx.export import to_onnx
from tilewright.graph.passes.weight_only import round_to_nearest, weight_only

RNG = np.random.default_rng(0)


def network(kind: Any = np.float32, depth: int = 100, **gemm: Any) -> onnx.ModelProto:
    """Gemm with a bias, Relu, MatMul; the first matrix is `depth` x 64, the second 64 x 80."""
    first = RNG.normal(size=(depth, 64)).astype(kind)
    if gemm.get("transB", 0):
        first = np.ascontiguousarray(first.T)
    known = {
        "w": first,
        "b": RNG.normal(size=64).astype(kind),
        "v": RNG.normal(size=(64, 80)).astype(kind),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], **gemm),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    elem = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", elem, (3, depth))],
        [info("y", elem, None)],
        [numpy_helper.from_array(a, n) for n, a in known.items()],
    )
    sets = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=sets, ir_version=10)


def share(found: Any, want: Any) -> float:
    """The error as a share of the norm."""
    difference = found.astype(np.float64) - want.astype(np.float64)
    return float(np.linalg.norm(difference) / np.linalg.norm(want.astype(np.float64)))


@pytest.mark.representatives("4-nbits-True")
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("form", ["nbits", "qdq"])
@pytest.mark.parametrize("bits", [4, 8])
def test_results_stay_close_here_and_elsewhere(bits, form, symmetric):
    onnxruntime = pytest.importorskip("onnxruntime")
    model = network(transB=1, alpha=0.5, beta=2.0)
    made = weight_only(load(model), bits, 32, form=form, symmetric=symmetric)
    x = RNG.normal(size=(3, 100)).astype(np.float32)
    want = tw.compile(model)(x)
    found = tw.compile(made, cache=False)(x)
    assert share(found, want) < (0.2 if bits == 4 else 0.012)
    written = to_onnx(made)
    onnx.checker.check_model(written)
    options = onnxruntime.SessionOptions()  # by default it makes bytes of activations
    options.graph_optimization_level = (
        onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    )
    session = onnxruntime.InferenceSession(
        written.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    (other,) = session.run(None, {"x": x})
    assert share(found, other) < 1e-5
    assert share(tw.compile(written, cache=False)(x), other) < 1e-5


def test_types():
    operators = {
        form: [
            op.qualified for op in weight_only(load(network()), form=form).operations
        ]
        for form in ("nbits", "qdq")
    }
    nbits = "com.microsoft::MatMulNBits"
    assert operators["nbits"] == [nbits, "Add", "Relu", nbits]
    qdq = "DequantizeLinear"
    assert operators["qdq"] == [qdq, "Gemm", "Relu", qdq, "MatMul"]


@pytest.mark.sampled(3)  # groups of one block, and of several
@pytest.mark.parametrize("group", [16, 32, 64, 128, 256])
def test_groups_and_half_floats(group):
    model = network(np.float16)
    x = RNG.normal(size=(3, 100)).astype(np.float16)
    made = weight_only(load(model), 8, group)
    assert share(tw.compile(made, cache=False)(x), tw.compile(model)(x)) < 0.015


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
def test_nearest(bits, symmetric):
    """No element is further off than half a step, and zeros stay zeros."""
    w = RNG.normal(size=(70, 9)).astype(np.float32)
    w[:, 3] = 0
    w[:32, 4] = np.abs(w[:32, 4]) + 3
    made = round_to_nearest(w, bits, 32, symmetric)
    step = np.repeat(np.abs(made.scale), 32, 0)[:70]
    # The middle of symmetric integers is not theirs: the far end has one step less.
    assert np.all(np.abs(made.real() - w) <= step * (1.001 if symmetric else 0.501))
    assert np.all(made.real()[:, 3] == 0)


def test_another_rounding():
    """Whoever chooses integers better hands the choice in."""
    seen = []

    def down(w, bits, group, symmetric):
        seen.append(w.shape)
        return round_to_nearest(np.floor(w), bits, group, symmetric)

    weight_only(load(network()), round=down)
    assert seen == [(100, 64), (64, 80)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bits": 3}, "bits is 3"),
        ({"group": 48}, "group is 48"),
        ({"form": "int"}, "form is 'int'"),
    ],
)
def test_recipes_that_are_none(options, said):
    with pytest.raises(InputError, match=said):
        weight_only(load(network()), **options)


def test_nothing_to_quantize():
    model = network(depth=32)
    del model.graph.node[2]
    model.graph.output[0].name = "r"
    with pytest.raises(InputError, match="no MatMul or Gemm"):
        weight_only(load(model))


def test_weights_that_are_not_finite():
    model = network()
    w = np.full((100, 64), np.nan, np.float32)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(w, "w"))
    with pytest.raises(InputError, match="'w' are not all finite") as caught:
        weight_only(load(model))
    assert "Gemm" in str(caught.value)


@pytest.mark.representatives("qdq")
@pytest.mark.parametrize("form", ["nbits", "qdq"])
def test_names_are_not_taken_twice(form):
    model = network(alpha=0.5, beta=2.0)
    taken = ("h/packed", "h/q", "h/scales", "h/term", "h/before_mul", "h/dequantized")
    for name in taken:
        array = np.ones(64, np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
        model.graph.node.append(helper.make_node("Add", ["h", name], [f"{name}/sum"]))
        output = helper.make_tensor_value_info(f"{name}/sum", 1, None)
        model.graph.output.append(output)
    x = RNG.normal(size=(3, 100)).astype(np.float32)
    made = weight_only(load(model), bits=8, form=form)
    onnx.checker.check_model(to_onnx(made))
    found, want = (tw.compile(m, cache=False)(x) for m in (made, model))
    for f, w in zip(found, want, strict=True):
        assert share(f, w) < 0.02


def test_the_error_is_that_of_the_scales_that_are_written():
    """float16 has few digits for scales of weights as small as these."""
    model = network(np.float16)
    w = (RNG.normal(size=(100, 64)) * 1e-6).astype(np.float16)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(w, "w"))
    with events.record() as seen:
        made = weight_only(load(model), form="qdq")
    error = next(e.fields["error"] for e in seen if e.kind == "weight-only")
    known = {v.name: a.astype(np.float32) for v, a in made.constants.items()}
    scales = np.repeat(known["h/scales"], 32, axis=0)[:100]
    real = (known["h/q"] - np.repeat(known["h/zeros"], 32, axis=0)[:100]) * scales
    assert error == pytest.approx(share(real, w), rel=1e-4)


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("size", [3e38, 2e-44])
def test_the_largest_and_the_least_weights(size, symmetric):
    w = np.sign(RNG.normal(size=(64, 8))).astype(np.float32) * np.float32(size)
    w[:3] = 0
    found = round_to_nearest(w, 4, 32, symmetric)
    assert np.isfinite(found.scale).all() and np.max(found.zero) <= 15
    assert share(found.real(), w) < 0.2
