"""Winograd's convolutions in models: chosen by default, never exact, within their error bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.base import events
from tilewright.compute.winograd import FILTER, INPUT, RESULT, SIZE, TILE
from tilewright.frontends.onnx import load
from tilewright.testing.differential import check

rng = np.random.default_rng(4)


def model(nodes: list[Any], shape: list[int], weights: dict[str, Any]) -> Any:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.asarray(a, np.float32), n) for n, a in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def block(n: int, size: tuple[int, int], channels: int, pads: list[int], **attributes: Any) -> Any:
    """1x1; 3x3 with bias and ReLU; 3x3 with a residual (the 1x1's) where shapes agree; 1x1."""
    inner = channels // attributes.get("group", 1)
    weights: dict[str, Any] = {
        name: rng.standard_normal((channels, depth, k, k)) / (depth * k * k) ** 0.5
        for name, depth, k in (
            ("w0", channels, 1),
            ("w1", inner, 3),
            ("w2", inner, 3),
            ("w3", channels, 1),
        )
    }
    weights["b"] = rng.standard_normal(channels)
    same = pads == [1, 1, 1, 1] and not attributes
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["t"]),
        helper.make_node("Conv", ["t", "w1", "b"], ["u"], pads=pads, **attributes),
        helper.make_node("Relu", ["u"], ["v"]),
        helper.make_node("Conv", ["v", "w2"], ["c"], pads=pads, **attributes),
        helper.make_node("Add", ["c", "t"] if same else ["c", "c"], ["s"]),
        helper.make_node("Relu", ["s"], ["r"]),
        helper.make_node("Conv", ["r", "w3"], ["y"]),
    ]
    return model(nodes, [n, channels, *size], weights)


def chosen(source: Any, **options: Any) -> int:
    with events.record() as log:
        tw.compile(source, cache=False, **options)
    assert not [e for e in log if e.kind == "sketch-refused"]
    return sum(e.kind == "winograd" and "stage" in e.fields for e in log)


Case = tuple[int, tuple[int, int], int, list[int], str]
CASES: list[Case] = [
    (1, (14, 14), 32, [1, 1, 1, 1], "host"),
    (2, (12, 9), 48, [0, 0, 0, 0], "host"),
    (3, (11, 12), 32, [1, 0, 0, 2], "host"),
    (1, (13, 15), 32, [1, 1, 1, 1], "x86-64-v3"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_networks_agree_with_their_truth_on_any_number_of_threads(case: Case) -> None:
    n, size, channels, pads, mcpu = case
    graph = load(block(n, size, channels, pads))
    x = rng.standard_normal((n, channels, *size)).astype(np.float32)
    options = {} if mcpu == "host" else {"mcpu": mcpu}
    with events.record() as log:
        assert not check(graph, {"x": x}, threads=(1, 2, 3), cache=True, **options)
    assert sum(e.kind == "winograd" and "stage" in e.fields for e in log) == 3 * 2
    assert not [e for e in log if e.kind == "sketch-refused"]


def test_exact_math_never_takes_it() -> None:
    source = block(1, (14, 14), 32, [1, 1, 1, 1])
    assert chosen(source) == 2
    assert chosen(source, math="exact") == 0


@pytest.mark.parametrize("attributes", [{"strides": [2, 2]}, {"dilations": [2, 2]}, {"group": 2}])
def test_other_convolutions_stay_direct(attributes: dict[str, Any]) -> None:
    source = block(1, (30, 30), 32, [1, 1, 1, 1], **attributes)
    assert chosen(source) == 0


def test_weights_that_are_no_constants_stay_direct() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "e"], ["t"]),
        helper.make_node("ReduceMean", ["x"], ["m"], keepdims=0, axes=[0, 1, 2, 3]),
        helper.make_node("Mul", ["w", "m"], ["v"]),
        helper.make_node("Conv", ["t", "v"], ["u"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["u", "e"], ["y"]),
    ]
    weights = {"e": np.eye(32)[..., None, None], "w": rng.standard_normal((32, 32, 3, 3))}
    assert chosen(model(nodes, [1, 32, 14, 14], weights)) == 0


def test_inputs_and_outputs_of_the_model_are_moved_once() -> None:
    """Two layers read one input; one result leaves the model, one is part of a concatenation."""
    weights: dict[str, Any] = {
        n: rng.standard_normal((64, 64, 3, 3)) / 24 for n in ("w1", "w2", "w3")
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["p"]),
        helper.make_node("Conv", ["x", "w2"], ["b"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["p", "w3"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Concat", ["b", "c"], ["y"], axis=1),
    ]
    source = model(nodes, [1, 64, 13, 14], weights)
    source.graph.output.append(helper.make_tensor_value_info("p", TensorProto.FLOAT, None))
    exe = tw.compile(source, cache=False)
    kernels = [k.name for k in exe.model.kernels]
    assert sum(k.endswith(".in") for k in kernels) >= 1
    x = rng.standard_normal((1, 64, 13, 14)).astype(np.float32)
    assert not check(load(source), {"x": x}, threads=(1, 2))


def test_a_convolution_alone_is_worth_moving_if_it_is_deep() -> None:
    def alone(channels: int) -> Any:
        w = rng.standard_normal((channels, channels, 3, 3))
        node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
        return model([node], [1, channels, 28, 28], {"w": w})

    assert chosen(alone(64)) == 1
    assert chosen(alone(16)) == 0


def bound(x: Any, w: Any) -> Any:
    """The bound that `compute/winograd.py` states, per result; x padded by 1, all extents even."""
    depth = x.shape[0]
    matrices = [np.abs(np.array(m, float)) for m in (INPUT, FILTER, RESULT)]
    b, g, a = matrices
    padded = np.pad(np.abs(x.astype(float)), ((0, 0), (1, 1), (1, 1)))
    filters = np.einsum("ui,kcij,vj->kcuv", g, np.abs(w.astype(float)), g)
    rows, columns = x.shape[1] // TILE, x.shape[2] // TILE
    found = np.empty((w.shape[0], x.shape[1], x.shape[2]))
    for p in range(rows):
        for q in range(columns):
            at = np.s_[TILE * p : TILE * p + SIZE, TILE * q : TILE * q + SIZE]
            tile = np.einsum("ui,cij,vj->cuv", b, padded[(slice(None), *at)], b)
            point = np.einsum("kcuv,cuv->kuv", filters, tile)
            part = np.einsum("pu,kuv,qv->kpq", a, point, a)
            found[:, TILE * p : TILE * (p + 1), TILE * q : TILE * (q + 1)] = part
    n = (depth + 10) * 2.0**-24
    return n / (1 - n) * found


def direct(x: Any, w: Any) -> Any:
    padded = np.pad(x.astype(float), ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    return np.einsum("chwij,kcij->khw", windows, w.astype(float), optimize=True)


@pytest.mark.parametrize("scale", [1.0, 2.0**40, 2.0**-100])
@pytest.mark.parametrize("spread", [0, 6])
def test_results_are_within_the_stated_bound(scale: float, spread: int) -> None:
    """Elements of one size, and of sizes apart by powers of ten (worst for sums of differences)."""
    depth, width, size = 64, 32, 12
    x, w = (
        (rng.standard_normal(s) * 10.0 ** rng.integers(-spread // 2, spread // 2 + 1, s))
        for s in ((depth, size, size), (width, depth, 3, 3))
    )
    x, w = (x * scale).astype(np.float32), w.astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "e"], ["t"]),
        helper.make_node("Conv", ["t", "w"], ["u"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["u", "f"], ["y"]),
    ]
    weights = {"e": np.eye(depth)[..., None, None], "w": w, "f": np.eye(width)[..., None, None]}
    source = model(nodes, [1, depth, size, size], weights)
    assert chosen(source) == 1
    got = tw.compile(source, cache=False)(x[None])[0]
    error, allowed = np.abs(got - direct(x, w)), bound(x, w)
    assert np.all(error <= allowed)
    assert error.max() > allowed.max() / 1e6  # the bound is about these numbers
