"""`precision=`: matrices held in float16 or bfloat16, only where asked, with bounded error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

import tilewright as tw
from tests.graph.test_weight_only import network, share
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.driver.compile import text
from tilewright.runtime.machine import missing_features
from tilewright.targets.cpu.machine import machine

RNG = np.random.default_rng(0)
EPS = {"float16": 2.0**-11, "bfloat16": 2.0**-8}


def needs(mcpu: str) -> None:
    """Skip where this processor cannot run code for that one."""
    missing = missing_features(machine(mcpu).features)
    if missing:
        pytest.skip(f"this processor has no {', '.join(missing)}")


def product(rows: int, k: int, n: int, size: float = 1.0) -> tuple[Any, Any, Any]:
    """A model of x @ w, x, and w."""
    w = (size * RNG.normal(size=(k, n))).astype(np.float32)
    x = RNG.normal(size=(rows, k)).astype(np.float32)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [info("x", 1, x.shape)],
        [info("y", 1, None)],
        [numpy_helper.from_array(w, "w")],
    )
    sets = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=sets, ir_version=10), x, w


@pytest.mark.covering(1)  # each level, type and number of rows
@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 2, 7, 40])
@pytest.mark.parametrize("mcpu", ["x86-64-v2", "x86-64-v3", "x86-64-v4", "znver4"])
def test_error_is_that_of_the_type(precision, rows, mcpu):
    needs(mcpu)
    model, x, w = product(rows, 70, 45)
    exe = tw.compile(model, precision=precision, mcpu=mcpu, cache=False)
    want = x.astype(np.float64) @ w.astype(np.float64)
    most = np.abs(x).astype(np.float64) @ np.abs(w) * EPS[precision]
    error = np.abs(exe(x) - want)
    assert np.all(error <= 2.1 * most)
    assert error.max() > 1e-6, "nothing was rounded"


def test_one_row_rounds_weights_alone():
    model, x, w = product(1, 64, 32)
    exe = tw.compile(model, precision="bfloat16", cache=False)
    import ml_dtypes

    held = w.astype(ml_dtypes.bfloat16).astype(np.float64)
    np.testing.assert_allclose(exe(x), x.astype(np.float64) @ held, 1e-5, 1e-5)


def test_what_is_held():
    model, _, _ = product(4, 64, 32)
    assert "bfloat16[64, 32]" in text(model, "graph", precision="bfloat16")
    assert "float16[64, 32]" in text(model, "graph", precision="float16")
    assert "MixedMatMul" not in text(model, "graph")
    options = {"precision": "bfloat16", "mcpu": "znver4"}
    assert "vdpbf16ps" in text(model, "kernel", **options)
    assert "vdpbf16ps" not in text(product(1, 64, 32)[0], "kernel", **options)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_gemm_and_its_terms(precision):
    model = network(transB=1, alpha=0.5, beta=2.0)
    x = RNG.normal(size=(3, 100)).astype(np.float32)
    found = tw.compile(model, precision=precision, cache=False)(x)
    assert share(found, tw.compile(model)(x)) < 2 * EPS[precision]


def test_sanitized():
    model, x, w = product(5, 33, 21)
    for precision in EPS:
        exe = tw.compile(model, precision=precision, sanitize=True, cache=False)
        assert share(exe(x), x @ w) < EPS[precision]


def test_infinities_and_nan_stay():
    model, x, _ = product(4, 64, 32)
    x[1, 2], x[2, 3] = np.inf, np.nan
    for precision in EPS:
        y = tw.compile(model, precision=precision, cache=False)(x)
        assert np.isinf(y[1]).all() and np.isnan(y[2]).all()
        assert np.isfinite(y[[0, 3]]).all()


def test_weights_beyond_float16():
    model, _, _ = product(1, 64, 32, size=1e6)
    with pytest.raises(InputError, match="beyond float16") as caught:
        tw.compile(model, precision="float16")
    assert "'w'" in str(caught.value) and "bfloat16" in str(caught.value)
    tw.compile(model, precision="bfloat16")


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"precision": "float8"}, InputError, "precision='float8'"),
        ({"precision": "float16", "math": "exact"}, InputError, "exact"),
        ({"precision": "float16", "target": "vta"}, UnsupportedError, "no such mode"),
    ],
)
def test_what_cannot_be(options, kind, said):
    with pytest.raises(kind, match=said):
        tw.compile(product(1, 64, 32)[0], **options)


def images(width: int = 32) -> tuple[Any, Any]:
    """A network with a shortcut, pooling and concatenation, and its input."""
    from tilewright.testing.networks.builder import Net

    n = Net("images")
    x = n.input(1, 16, 13, 11)
    a = x.conv(width).max_pool()
    b = a.conv(width)
    case = n.case([n.cat((a + b).conv(width, 1), a).conv(16)])
    return case.graph, dict(case.inputs)


@pytest.mark.representatives("37-x86-64-v4-False", "37-znver4-True")
@pytest.mark.parametrize(("mcpu", "is_lower"), [("x86-64-v4", False), ("znver4", True)])
@pytest.mark.parametrize("keys", [36, 37])
def test_attention_rounds_where_pairs_are_multiplied(mcpu, is_lower, keys):
    needs(mcpu)
    from tilewright.testing.networks.builder import Net

    n = Net("heads")
    q, k, v = n.input(2, 3, 20, 18), n.input(2, 3, 18, keys), n.input(2, 3, keys, 33)
    case = n.case([((q @ k) * 0.25).Softmax(axis=-1) @ v])
    graph, inputs = case.graph, dict(case.inputs)
    exe = tw.compile(graph, precision="bfloat16", mcpu=mcpu, threads=1, cache=False)
    exact = tw.compile(graph, mcpu=mcpu, threads=1, math="exact", cache=False)
    error = share(exe(inputs), exact(inputs))
    assert (EPS["bfloat16"] / 4 < error < 3 * EPS["bfloat16"]) == is_lower
    assert is_lower or error < 1e-6
    found = text(graph, "kernel", precision="bfloat16", mcpu=mcpu)
    assert found.count("vdpbf16ps(") == 2 * is_lower


@pytest.mark.representatives("1-x86-64-v3-False", "2-znver4-True")
@pytest.mark.parametrize(
    ("mcpu", "is_lower"), [("x86-64-v3", False), ("x86-64-v4", False), ("znver4", True)]
)
@pytest.mark.parametrize("threads", [1, 2])
def test_convolutions_round_where_pairs_are_multiplied(mcpu, is_lower, threads):
    needs(mcpu)
    graph, inputs = images()
    options = {"mcpu": mcpu, "threads": threads, "cache": False}
    exe = tw.compile(graph, precision="bfloat16", **options)
    error = share(exe(inputs), tw.compile(graph, math="exact", **options)(inputs))
    assert (EPS["bfloat16"] / 4 < error < 3 * EPS["bfloat16"]) == is_lower
    assert is_lower or error < 1e-6
    found = text(graph, "kernel", precision="bfloat16", mcpu=mcpu)
    assert ("vdpbf16ps" in found) == is_lower


def test_convolutions_use_tiles_of_amx():
    graph, _ = images(64)
    found = text(graph, "kernel", precision="bfloat16", mcpu="sapphirerapids")
    assert "tdpbf16ps" in found or "vdpbf16ps" in found


def test_convolutions_sanitized():
    needs("znver4")
    graph, inputs = images()
    options = {"precision": "bfloat16", "mcpu": "znver4", "sanitize": True}
    exe = tw.compile(graph, cache=False, **options)
    assert share(exe(inputs), tw.compile(graph)(inputs)) < 3 * EPS["bfloat16"]
