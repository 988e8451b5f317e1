"""Winograd's convolutions in models: small tiles by default, large ones by fast math, none by exact
math; within their error bounds."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.base import events
from tilewright.compute.toom_cook import filtering
from tilewright.driver import text
from tilewright.frontends.onnx import load
from tilewright.testing.differential import check

rng = np.random.default_rng(4)


def model(nodes: list[Any], shape: list[int], weights: dict[str, Any]) -> Any:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            onnx.numpy_helper.from_array(np.asarray(a, np.float32), n)
            for n, a in weights.items()
        ],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )


def block(
    n: int, size: tuple[int, int], channels: int, pads: list[int], **attributes: Any
) -> Any:
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


def chosen(source: Any, **options: Any) -> list[int]:
    """The tile of each layer in Winograd's form, by the names of the kernels."""
    listed = text(source, "computation", **options)
    return [int(m) for m in re.findall(r"F\((\d),3\): ", listed)]


def _tiles(log: list[Any]) -> list[int]:
    assert not [e for e in log if e.kind == "sketch-refused"]
    return [
        e.fields["tile"] for e in log if e.kind == "winograd" and "stage" in e.fields
    ]


Case = tuple[int, tuple[int, int], int, list[int], str, str]
CASES: list[Case] = [
    (1, (19, 20), 32, [1, 0, 0, 2], "host", "default"),
]
MORE: list[Case] = [
    (3, (19, 20), 32, [1, 0, 0, 2], "host", "default"),
    (1, (22, 23), 48, [1, 0, 0, 2], "host", "fast"),
    (1, (13, 15), 32, [1, 1, 1, 1], "x86-64-v3", "default"),
    (1, (14, 14), 32, [1, 1, 1, 1], "host", "default"),
    (2, (12, 9), 48, [0, 0, 0, 0], "host", "default"),
    (2, (23, 19), 32, [0, 0, 0, 0], "host", "fast"),
    (1, (21, 15), 32, [1, 1, 1, 1], "x86-64-v3", "fast"),
]


@pytest.mark.parametrize(
    "case", [*CASES, *(pytest.param(c, marks=pytest.mark.slow) for c in MORE)], ids=str
)
def test_networks_agree_with_their_truth_on_any_number_of_threads(case: Case) -> None:
    n, size, channels, pads, mcpu, math = case
    graph = load(block(n, size, channels, pads))
    x = rng.standard_normal((n, channels, *size)).astype(np.float32)
    options = {} if mcpu == "host" else {"mcpu": mcpu}
    with events.record() as log:
        assert not check(
            graph, {"x": x}, threads=(1, 2, 3), cache=True, math=math, **options
        )
    # Fewer of them for three threads, where the rows of tiles do not come out even.
    tiles = _tiles(log)
    assert 2 * 2 <= len(tiles) <= 2 * 3 and set(tiles) == {4 if math == "fast" else 2}


@pytest.mark.representatives("x86-64-v3")
@pytest.mark.parametrize("mcpu", ["x86-64-v3", "x86-64-v4"])
def test_strided_convolutions_agree_with_their_truth(mcpu: str) -> None:
    graph = load(block(1, (24, 23), 96, [1, 0, 0, 2], strides=[2, 2]))
    x = rng.standard_normal((1, 96, 24, 23)).astype(np.float32)
    with events.record() as log:
        assert not check(graph, {"x": x}, threads=(1, 2), cache=True, mcpu=mcpu)
    assert _tiles(log) == [2] * 2  # the second one has too few results


@pytest.mark.parametrize(
    "pads",
    [[0, 1, 0, 2, 1, 1], pytest.param([1] * 6, marks=pytest.mark.slow)],
    ids=str,
)
def test_clips_agree_with_their_truth_on_any_number_of_threads(pads: Any) -> None:
    """Convolutions 3x3x3: with frames of zeros around, and with some in the front and behind."""
    weights = {f"w{n}": rng.standard_normal((32, 32, 3, 3, 3)) / 30 for n in range(2)}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["t"], pads=pads),
        helper.make_node("Relu", ["t"], ["u"]),
        helper.make_node("Conv", ["u", "w1"], ["v"], pads=[1] * 6),
        helper.make_node("Relu", ["v"], ["y"]),
    ]
    graph = load(model(nodes, [1, 32, 4, 9, 10], weights))
    x = rng.standard_normal((1, 32, 4, 9, 10)).astype(np.float32)
    with events.record() as log:
        assert not check(graph, {"x": x}, threads=(1, 2), cache=True)
    assert len(_tiles(log)) == 2 * 2


def test_only_fast_math_takes_large_tiles_and_exact_math_none() -> None:
    source = block(1, (16, 16), 32, [1, 1, 1, 1])
    assert chosen(source) == chosen(source, math="default") == [2, 2]
    assert chosen(source, math="fast") == [4, 4]
    assert chosen(source, math="exact") == []


def test_fast_math_keeps_small_tiles_and_direct_sums_where_they_are_faster() -> None:
    deep = block(1, (6, 6), 256, [1, 1, 1, 1])
    assert chosen(deep, math="fast") == [2, 2]
    small = block(1, (3, 3), 32, [1, 1, 1, 1])
    assert chosen(small, math="fast") == []


@pytest.mark.parametrize(
    "attributes", [{"strides": [2, 2]}, {"dilations": [2, 2]}, {"group": 16}]
)
def test_other_convolutions_stay_direct(attributes: dict[str, Any]) -> None:
    source = block(1, (30, 30), 32, [1, 1, 1, 1], **attributes)
    assert chosen(source) == []


def test_groups_are_transformed_one_by_one() -> None:
    """Two layers of two groups each."""
    source = block(1, (14, 13), 96, [1, 1, 1, 1], group=2)
    assert chosen(source) == [2] * 4
    assert chosen(source, math="exact") == []
    x = rng.standard_normal((1, 96, 14, 13)).astype(np.float32)
    assert not check(load(source), {"x": x}, threads=(1, 2))


@pytest.mark.slow
def test_a_result_of_groups_leaves_in_another_shape() -> None:
    weights = {
        "w": rng.standard_normal((128, 64, 3, 3)) / 24,
        "b": rng.standard_normal(128),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["t"], pads=[1, 1, 1, 1], group=2),
        helper.make_node("Constant", [], ["s"], value_ints=[1, 2, 64, 14, 13]),
        helper.make_node("Reshape", ["t", "s"], ["r"]),
        helper.make_node("ReduceSum", ["r", "a"], ["y"], keepdims=0),
    ]
    split = model(nodes, [1, 128, 14, 13], weights)
    x = rng.standard_normal((1, 128, 14, 13)).astype(np.float32)
    axis = onnx.numpy_helper.from_array(np.array([1]), "a")
    split.graph.initializer.append(axis)
    assert chosen(split) == [2, 2]
    assert not check(load(split), {"x": x}, threads=(1, 2))


def test_weights_that_are_no_constants_stay_direct() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "e"], ["t"]),
        helper.make_node("ReduceMean", ["x"], ["m"], keepdims=0, axes=[0, 1, 2, 3]),
        helper.make_node("Mul", ["w", "m"], ["v"]),
        helper.make_node("Conv", ["t", "v"], ["u"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["u", "e"], ["y"]),
    ]
    weights = {
        "e": np.eye(32)[..., None, None],
        "w": rng.standard_normal((32, 32, 3, 3)),
    }
    assert chosen(model(nodes, [1, 32, 14, 14], weights)) == []


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
    source.graph.output.append(
        helper.make_tensor_value_info("p", TensorProto.FLOAT, None)
    )
    exe = tw.compile(source, cache=False)
    kernels = [k.name for k in exe.model.kernels]
    assert sum(k.endswith(".in") for k in kernels) >= 1
    x = rng.standard_normal((1, 64, 13, 14)).astype(np.float32)
    assert not check(load(source), {"x": x}, threads=(1, 2))


def test_a_convolution_alone_is_worth_moving_if_it_is_deep_or_small() -> None:
    """The copies of a large image with few channels take longer than the products saved."""

    def alone(channels: int, side: int = 28) -> Any:
        w = rng.standard_normal((channels, channels, 3, 3))
        node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
        return model([node], [1, channels, side, side], {"w": w})

    assert chosen(alone(64)) == [2]
    assert chosen(alone(16)) == [2]
    assert chosen(alone(16, 336)) == []
    assert chosen(alone(8)) == []


def bound(x: Any, w: Any, tile: int, stride: int) -> Any:
    """The bound that `compute/winograd.py` states, per result; x padded by 1, whole tiles."""
    f, depth = filtering(tile, 3, stride), x.shape[0]
    b, g, a = (
        np.abs(np.array([[float(c) for c in row] for row in m.rows]))
        for m in (f.inputs, f.filters, f.results)
    )
    padded = np.pad(np.abs(x.astype(float)), ((0, 0), (1, 1), (1, 1)))
    filters = np.einsum("ui,kcij,vj->kcuv", g, np.abs(w.astype(float)), g)
    step = stride * tile
    rows, columns = x.shape[1] // step, x.shape[2] // step
    found = np.empty((w.shape[0], tile * rows, tile * columns))
    for p in range(rows):
        for q in range(columns):
            at = np.s_[step * p : step * p + f.size, step * q : step * q + f.size]
            data = np.einsum("ui,cij,vj->cuv", b, padded[(slice(None), *at)], b)
            point = np.einsum("kcuv,cuv->kuv", filters, data)
            part = np.einsum("pu,kuv,qv->kpq", a, point, a)
            found[:, tile * p : tile * (p + 1), tile * q : tile * (q + 1)] = part
    n = (depth + f.roundings) * 2.0**-24
    largest = depth * f.growth**2 * np.abs(x).max() * np.abs(w).max()
    assert np.all(found <= largest * (1 + 1e-9))
    return n / (1 - n) * found


def direct(x: Any, w: Any, stride: int) -> Any:
    padded = np.pad(x.astype(float), ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
    windows = windows[:, ::stride, ::stride]
    return np.einsum("chwij,kcij->khw", windows, w.astype(float), optimize=True)


def adversarial(depth: int, width: int, size: int) -> tuple[Any, Any]:
    """Signs that let every row of the inputs' transform add up at some tile, large sums that cancel
    in the results, and filters alike."""
    signs = rng.choice([-1.0, 1.0], (depth, 1, 1)) * (-1.0) ** np.add.outer(
        *[np.arange(size)] * 2
    )
    x = signs * rng.uniform(1, 1.001, (depth, size, size))
    return x, rng.choice([-1.0, 1.0], (width, depth, 1, 1)) * rng.uniform(
        1, 1.1, (3, 3)
    )


def numbers(kind: str, depth: int, width: int, size: int) -> tuple[Any, Any]:
    """Inputs and filters: of one size, of sizes apart by powers of ten (worst for sums of
    differences), or adversarial."""
    if kind == "adversarial":
        return adversarial(depth, width, size)
    spread = {"alike": 0, "spread": 3}[kind]
    shapes = (depth, size, size), (width, depth, 3, 3)
    x, w = (
        rng.standard_normal(s) * 10.0 ** rng.integers(-spread, spread + 1, s)
        for s in shapes
    )
    return x, w


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("tile", "stride"), [(2, 1), (4, 1), (2, 2)])
@pytest.mark.parametrize(
    ("kind", "scale"),
    [("alike", 1.0), ("alike", 2.0**40), ("spread", 2.0**-100), ("adversarial", 1.0)],
)
def test_results_are_within_the_stated_bound(
    kind: str, scale: float, tile: int, stride: int
) -> None:
    depth, width, size = 64, 32, 24 * stride
    x, w = numbers(kind, depth, width, size)
    x, w = (x * scale).astype(np.float32), w.astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "e"], ["t"]),
        helper.make_node(
            "Conv", ["t", "w"], ["u"], pads=[1, 1, 1, 1], strides=[stride] * 2
        ),
        helper.make_node("Conv", ["u", "f"], ["y"]),
    ]
    weights = {
        "e": np.eye(depth)[..., None, None],
        "w": w,
        "f": np.eye(width)[..., None, None],
    }
    source = model(nodes, [1, depth, size, size], weights)
    math = "fast" if tile == 4 else "default"
    with events.record() as log:
        exe = tw.compile(source, math=math)
    got = exe(x[None])[0]
    assert _tiles(log) == [tile]
    form = f"F({tile},3)"
    assert [form in k.name for k in exe.model.kernels].count(True) == 1
    assert form in str(exe.profile(x[None], repeat=1))
    error, allowed = np.abs(got - direct(x, w, stride)), bound(x, w, tile, stride)
    assert np.all(error <= allowed)
    assert error.max() > allowed.max() / 1e6  # the bound is about these numbers


@pytest.mark.parametrize("math", ["default", "fast"])
def test_a_convolution_of_a_part_does_not_feel_the_rest(math: str) -> None:
    """Large tiles of the last results took in what lies behind the slice, infinite or not."""
    w = rng.standard_normal((64, 64, 3, 3)).astype(np.float32)
    ends = {"a": np.zeros(2), "b": np.full(2, 19), "axes": np.array([2, 3])}
    weights = [
        onnx.numpy_helper.from_array(a.astype(np.int64), n) for n, a in ends.items()
    ]
    nodes = [
        helper.make_node("Slice", ["x", *ends], ["s"]),
        helper.make_node("Conv", ["s", "w"], ["y"]),
    ]
    made = model(nodes, [1, 64, 24, 24], {"w": w})
    made.graph.initializer.extend(weights)
    with events.record() as log:
        exe = tw.compile(made, math=math, cache=False)
    assert [e.fields["tile"] for e in log if e.kind == "winograd" and e.fields] == [2]
    x = rng.standard_normal((1, 64, 24, 24)).astype(np.float32)
    want = exe(x)
    x[:, :, 19:], x[:, :, :, 19:] = np.inf, 1e30
    np.testing.assert_array_equal(exe(x), want)
