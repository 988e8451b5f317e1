"""Poolings against NumPy's view of their windows: every geometry, NaN, both layouts, AVX2 too."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx.reference
import pytest
from onnx import helper, numpy_helper

import tilewright as tw
from tests.graph.one_operator import agree
from tilewright.base.events import record

GEOMETRIES: dict[str, dict[str, Any]] = {
    "3s2p1": {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    "3s2": {"kernel_shape": [3, 3], "strides": [2, 2]},
    "3s2end": {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [0, 0, 1, 1]},
    "3s1p1": {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]},
    "2s1": {"kernel_shape": [2, 2]},
    "2s2": {"kernel_shape": [2, 2], "strides": [2, 2]},
    "5p2": {"kernel_shape": [5, 5], "pads": [2, 2, 2, 2]},
    "3x2": {"kernel_shape": [3, 2], "strides": [1, 2], "pads": [1, 0, 0, 1]},
    "ceil": {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
    "same": {"kernel_shape": [4, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    "dilated": {"kernel_shape": [3, 3], "strides": [2, 2], "dilations": [2, 2]},
    "wide": {"kernel_shape": [3, 3], "dilations": [2, 1], "pads": [2, 1, 2, 1]},
    "11": {"kernel_shape": [11, 11], "pads": [5, 5, 5, 5]},
}
SIZES = [(1, 3, 13, 14), (2, 21, 17, 35)]
THIN = [(1, 4, 3, 40), (1, 1, 5, 20), (1, 1, 3, 18), (3, 2, 20, 3), (1, 2, 3, 3)]


def data(shape: tuple[int, ...], special: bool = False) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    if special:
        x.flat[::37], x.flat[5::41], x.flat[7::43] = np.nan, np.inf, -np.inf
        x[0, 0] = -np.inf
        x[-1, -1, :, ::3] = -np.nan
    return x


def maxima(
    x: np.ndarray, geometry: dict[str, Any], outputs: tuple[int, ...]
) -> np.ndarray:
    """The maximum of each window, NaN where one is in it."""
    kernel, steps = geometry["kernel_shape"], geometry.get("strides", [1, 1])
    dilations, pads = geometry.get("dilations", [1, 1]), geometry.get("pads", [0] * 4)
    if "auto_pad" in geometry:
        over = [
            max(0, (o - 1) * s + k - n)
            for o, s, k, n in zip(outputs, steps, kernel, x.shape[2:])
        ]
        pads = [n // 2 for n in over]
    y = np.empty((*x.shape[:2], *outputs), x.dtype)
    for at in np.ndindex(*outputs):
        places = [
            [p for p in (i * s + t * d - b for t in range(k)) if 0 <= p < n]
            for i, s, k, d, b, n in zip(at, steps, kernel, dilations, pads, x.shape[2:])
        ]
        y[(slice(None), slice(None), *at)] = x[:, :, places[0]][:, :, :, places[1]].max(
            (2, 3)
        )
    return y


@pytest.mark.representatives("3s2p1-native", "3s2end-x86-64-v3", "dilated-native")
@pytest.mark.parametrize("mcpu", ["native", "x86-64-v3"])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_maximum_keeps_nan(geometry: str, mcpu: str) -> None:
    for shape in SIZES:
        x = data(shape, special=True)
        options = GEOMETRIES[geometry]
        exe = tw.compile(alone("MaxPool", x, options), threads=2, mcpu=mcpu)
        y = exe(x)
        np.testing.assert_array_equal(y, maxima(x, options, y.shape[2:]))


@pytest.mark.sampled(4)  # few rows, and few columns
@pytest.mark.parametrize("shape", THIN, ids=str)
def test_few_rows_or_columns(shape: tuple[int, ...]) -> None:
    x = data(shape)
    for name in ("3s1p1", "3s2", "2s1"):
        y = tw.compile(alone("MaxPool", x, GEOMETRIES[name]))(x)
        np.testing.assert_array_equal(y, maxima(x, GEOMETRIES[name], y.shape[2:]))
        agree("AveragePool", [x], **GEOMETRIES[name])


def alone(op: str, x: np.ndarray, options: dict[str, Any]) -> onnx.ModelProto:
    """A model of one pooling, stored channels first."""
    return _model([helper.make_node(op, ["x"], ["y"], **options)], x, [])


def between(op: str, x: np.ndarray, options: dict[str, Any]) -> onnx.ModelProto:
    """A pooling of the channels that a convolution makes, stored channels last."""
    depth = x.shape[1]
    w = np.random.default_rng(1).standard_normal((19, depth, 1, 1)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["t"]),
        helper.make_node(op, ["t"], ["u"], **options),
        helper.make_node("Conv", ["u", "v"], ["y"]),
    ]
    v = np.ones((3, 19, 1, 1), np.float32)
    return _model(
        nodes, x, [numpy_helper.from_array(w, "w"), numpy_helper.from_array(v, "v")]
    )


def _model(nodes: list[Any], x: np.ndarray, constants: list[Any]) -> onnx.ModelProto:
    float32 = onnx.TensorProto.FLOAT
    given = helper.make_tensor_value_info("x", float32, x.shape)
    made = helper.make_tensor_value_info("y", float32, None)
    graph = helper.make_graph(nodes, "pool", [given], [made], constants)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    )


@pytest.mark.representatives(
    "3s2p1-0-native", "3s1p1-1-native", "ceil-1-x86-64-v3", "dilated-1-native"
)
@pytest.mark.parametrize("mcpu", ["native", "x86-64-v3"])
@pytest.mark.parametrize("include", [0, 1])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_mean(
    geometry: str, include: int, mcpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_MCPU", mcpu)
    options = {**GEOMETRIES[geometry], "count_include_pad": include}
    agree("AveragePool", [data(SIZES[0])], **options)


@pytest.mark.representatives("3s2p1-MaxPool-native", "same-AveragePool-x86-64-v3")
@pytest.mark.parametrize("mcpu", ["native", "x86-64-v3"])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    "geometry",
    [pytest.param(g, marks=[pytest.mark.slow] * (g == "5p2")) for g in GEOMETRIES],
)
def test_channels_last(geometry: str, op: str, mcpu: str) -> None:
    x = data((1, 5, 17, 22))
    model = between(op, x, GEOMETRIES[geometry])
    found = tw.compile(model, threads=2, mcpu=mcpu)(x)
    expected = tw.compile(model, math="exact")(x)  # means by all of a window at once
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float16", "float64"])
def test_dtypes(dtype: str) -> None:
    x = (data(SIZES[0]) * 20).astype(dtype)
    y = tw.compile(_typed(x))(x)
    np.testing.assert_array_equal(y, maxima(x, GEOMETRIES["3s2p1"], y.shape[2:]))


def _typed(x: np.ndarray) -> onnx.ModelProto:
    model = alone("MaxPool", x, GEOMETRIES["3s2p1"])
    dtype = helper.np_dtype_to_tensor_dtype(x.dtype)
    for info in (model.graph.input[0], model.graph.output[0]):
        info.type.tensor_type.elem_type = dtype
    return model


@pytest.mark.parametrize(
    "op, geometry, math, separated",
    [
        ("MaxPool", "3s2p1", "default", True),
        ("MaxPool", "3s2p1", "exact", True),  # a maximum is the same in any order
        ("AveragePool", "3s1p1", "default", True),
        ("AveragePool", "3s1p1", "exact", False),
        ("MaxPool", "2s2", "default", False),
        ("MaxPool", "wide", "default", False),
    ],
)
def test_what_goes_axis_by_axis(
    op: str, geometry: str, math: Any, separated: bool
) -> None:
    model = between(op, data((1, 5, 17, 22)), GEOMETRIES[geometry])
    with record() as events:
        tw.compile(model, math=math, cache=False)
    assert any(e.kind == "separated" for e in events) is separated


def stem(op: str, geometry: str, pads: list[int], between: str = "") -> onnx.ModelProto:
    """A pooling whose result the next convolution reads beyond its edges."""
    x, options = data((1, 4, 13, 13)), GEOMETRIES[geometry]
    nodes = [
        helper.make_node(op, ["x"], ["p"], **options),
        helper.make_node(between or "Identity", ["p"], ["q"]),
        helper.make_node("Conv", ["q", "w"], ["y"], pads=pads),
    ]
    w = np.random.default_rng(1).standard_normal((4, 4, 3, 3)).astype(np.float32)
    return _model(nodes, x, [numpy_helper.from_array(w, "w")])


@pytest.mark.representatives("MaxPool-wide-Relu-pads1", "AveragePool-wide--pads0")
@pytest.mark.parametrize("between, pads", [("", [1, 1, 1, 1]), ("Relu", [0, 2, 1, 0])])
@pytest.mark.parametrize("geometry", ["3s2", "3s2p1", "2s1", "wide"])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_into_the_halo_of_a_convolution(
    op: str, geometry: str, between: str, pads: list[int]
) -> None:
    model, x = stem(op, geometry, pads, between), data((1, 4, 13, 13))
    (expected,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    for mcpu, math in (
        ("native", "default"),
        ("native", "exact"),
        ("x86-64-v2", "default"),
    ):
        found = tw.compile(model, math=math, mcpu=mcpu)(x)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_pieces_of_a_concatenation_that_a_convolution_pads() -> None:
    """As in an inception block: every piece is written inside of one halo, at its own place."""
    x, options = data((1, 4, 13, 13)), GEOMETRIES["3s1p1"]
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p"], **options),
        helper.make_node("AveragePool", ["x"], ["q"], **options),
        helper.make_node("Conv", ["x", "w"], ["r"], pads=[1, 1, 1, 1]),
        helper.make_node("Concat", ["p", "r", "q"], ["t"], axis=1),
        helper.make_node("Conv", ["t", "v"], ["y"], pads=[1, 1, 1, 1]),
    ]
    r = np.random.default_rng(1)
    w, v = (r.standard_normal((4, n, 3, 3)).astype(np.float32) for n in (4, 12))
    model = _model(
        nodes, x, [numpy_helper.from_array(w, "w"), numpy_helper.from_array(v, "v")]
    )
    (expected,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(tw.compile(model)(x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pool", ["AveragePool", "MaxPool", "LpPool"])
def test_no_window_starts_behind_a_tensor_of_unknown_batch(pool: str) -> None:
    """ONNX's inference counts it for AveragePool, where a shape is not known in advance."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 19]> f (float[3, 2, 4] x, bool[3] b) => (float y) '
        "{ c = Compress<axis = 0>(x, b) "
        f"y = {pool}<kernel_shape = [2], strides = [3], pads = [0, 2], ceil_mode = 1>(c) }}"
    )
    x = data((3, 2, 4))
    kept = x[[0, 2]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tw.TilewrightWarning)  # LpPool runs on the host
        exe = tw.compile(model, cache=False)
    found = exe(x, np.array([True, False, True]))
    assert [t.shape for t in exe.outputs] == [(None, 2, 2)]
    first, last = kept[:, :, :2], kept[:, :, 3:]
    join = {"AveragePool": np.mean, "MaxPool": np.max, "LpPool": np.linalg.norm}[pool]
    want = np.stack([join(part, axis=-1) for part in (first, last)], axis=-1)
    np.testing.assert_allclose(found, want, rtol=1e-6)
