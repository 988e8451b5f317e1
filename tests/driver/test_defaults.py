"""Inputs that have an initializer: defaults, compiled in, that a call may override by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.base import events
from tilewright.base.errors import InputError, ModelError
from tilewright.driver.dynamic import DynamicExecutable
from tilewright.frontends.onnx import load

RNG = np.random.default_rng(0)


def real(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


CONV = (
    "(float[1, 3, 8, 8] x, float[4, 3, 3, 3] w, float[4] b) => (float[1, 4, 6, 6] y) "
)
CONV += "{ y = Conv(x, w, b) }"
X, W, B = real(1, 3, 8, 8), real(4, 3, 3, 3), real(4)
SCALE = "(float[4] k, float[4] x) => (float[4] y) { y = Mul(x, k) }"


def model(text: str, ir: int = 8, /, **constants: Any) -> onnx.ModelProto:
    made = onnx.parser.parse_model(
        f'<ir_version: {ir}, opset_import: ["" : 18]> f {text}'
    )
    made.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()
    )
    return made


def expected(source: onnx.ModelProto, **feeds: Any) -> Any:
    return ReferenceEvaluator(source).run(None, feeds)[0]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("ir", [3, 8])
def test_weights_that_were_packed_are_not_those_of_the_call(ir: int) -> None:
    source = model(CONV, ir, w=W, b=B)
    exe = tw.compile(source)
    assert isinstance(exe, tw.Executable)
    assert [t.name for t in exe.inputs] == ["x"]
    assert dict(exe.defaults) == {"w": "float32[4, 3, 3, 3]", "b": "float32[4]"}
    for given in (
        {},
        {"w": real(4, 3, 3, 3)},
        {"b": real(4)},
        {"w": real(4, 3, 3, 3), "b": -B},
    ):
        want = expected(source, x=X, **{"w": W, "b": B, **given})
        np.testing.assert_allclose(exe(X, **given), want, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(exe({"x": X, **given}), want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        exe(X), expected(source, x=X, w=W, b=B), rtol=1e-4, atol=1e-5
    )


def test_one_form_for_all_values_of_the_same_inputs() -> None:
    exe = tw.compile(model(SCALE, k=np.ones(4, np.float32)))
    x = real(4)
    with events.record() as log:
        for factor in (2, 3, 4):
            k = np.full(4, factor, np.float32)
            np.testing.assert_array_equal(exe(x, k=k), x * k)
            np.testing.assert_array_equal(
                exe(k=k, x=x, out=np.empty(4, np.float32)), x * k
            )
    assert sum(e.kind == "span" and e.name == "compile" for e in log) <= 1
    assert exe.profile(x, k=k, repeat=1).rows
    exe.release()
    np.testing.assert_array_equal(exe(x, k=k), x * k)


def test_order_by_position_is_that_of_the_inputs_without_defaults() -> None:
    exe = tw.compile(model(SCALE, k=np.ones(4, np.float32)))
    x, k = real(4), real(4)
    np.testing.assert_array_equal(exe(x, k=k), x * k)  # k comes first in the model
    with pytest.raises(InputError, match="2 inputs given, the model has 1"):
        exe(k, x)


def test_what_a_call_may_not_give() -> None:
    exe = tw.compile(model(SCALE, k=np.ones(4, np.float32)))
    x = real(4)
    with pytest.raises(
        InputError, match=r"input 'k': expected float32\[4\], got shape \[3\]"
    ):
        exe(x, k=x[:3])
    with pytest.raises(
        InputError, match=r"input 'k': expected float32\[4\], got float64"
    ):
        exe(x, k=x.astype(np.float64))
    unknown = r"no input is called 'q': expected x: float32\[4\], with defaults k: float32\[4\]; "
    with pytest.raises(InputError, match=unknown):
        exe(x, k=x, q=x)
    with pytest.raises(InputError, match="missing inputs: x"):
        exe(k=x)
    assert repr(exe).endswith(", defaults=(k: float32[4]))")


SHAPE = (
    "(float[2, 6] x, int64[2] n) => (float[a, b] y) { s = Reshape(x, n) y = Relu(s) }"
)


def test_a_default_that_decides_the_shape() -> None:
    exe = tw.compile(model(SHAPE, n=np.array([3, 4])))
    x = real(2, 6)
    assert exe(x).shape == (3, 4)
    for n in ([4, 3], [-1, 2], [12, 1]):
        np.testing.assert_array_equal(
            exe(x, n=np.array(n)), np.maximum(x, 0).reshape(n)
        )
    assert exe(x).shape == (3, 4)


def test_symbolic_dimensions_and_a_default() -> None:
    text = "(float[N, 4] x, float[4] k) => (float[N, 4] y) { y = Mul(x, k) }"
    exe = tw.compile(model(text, k=np.full(4, 2, np.float32)))
    assert isinstance(exe, DynamicExecutable)
    assert dict(exe.defaults) == {"k": "float32[4]"}
    k = real(4)
    for rows in (1, 3):
        x = real(rows, 4)
        np.testing.assert_array_equal(exe(x), x * 2)
        np.testing.assert_array_equal(exe(x, k=k), x * k)
        assert exe.profile(x, k=k, repeat=1).rows
    with pytest.raises(
        InputError, match=r"no input is called 'q': .*with defaults k: float32"
    ):
        exe(x, q=k)
    exe.release()
    fixed = tw.compile(model(text, k=np.full(4, 2, np.float32)), dims={"N": 3})
    np.testing.assert_array_equal(fixed(x, k=k), x * k)


def test_a_model_found_whole_in_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    source = model(CONV, w=W, b=B)
    onnx.save(source, path)
    w = real(4, 3, 3, 3)
    want, other = expected(source, x=X, w=W, b=B), expected(source, x=X, w=w, b=B)
    np.testing.assert_allclose(tw.compile(path)(X), want, rtol=1e-4, atol=1e-5)
    for known in (["model-cached"], ["model-cached"] * 2):
        with events.record() as log:
            exe = tw.compile(path)
            np.testing.assert_allclose(exe(X), want, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(exe(X, w=w), other, rtol=1e-4, atol=1e-5)
        # The form in which w is an input is kept whole too, as another model.
        assert [e.kind for e in log if e.kind == "model-cached"] == known
    np.testing.assert_allclose(tw.compile(path)(X), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cache", [True, False])
def test_a_model_that_changed_since(tmp_path: Path, cache: bool) -> None:
    path, one = tmp_path / "m.onnx", np.ones(4, np.float32)
    text = "(float[4] k, float[4] x, float[4] j) => (float[4] y) { h = Mul(x, k) y = Add(h, j) }"
    onnx.save(model(text, k=one, j=one), path)
    exe = tw.compile(path, cache=cache)
    onnx.save(model(text, k=one, j=3 * one), path)
    with pytest.raises(
        ModelError, match="has changed since it was compiled, so k cannot be passed"
    ):
        exe(one, k=one)
    proto = model(text, k=one, j=one)
    exe = tw.compile(proto, cache=cache)
    np.testing.assert_array_equal(exe(one, k=2 * one), 3 * one)
    proto.graph.node[0].op_type = "Sub"
    with pytest.raises(ModelError, match="has changed since it was compiled"):
        exe(one, j=one)
    np.testing.assert_array_equal(exe(one, k=2 * one), 3 * one)  # compiled before


def test_weights_beside_the_model_that_changed(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    text = "(float[4] k, float[4] x, float[4] j) => (float[4] y) { h = Mul(x, k) y = Add(h, j) }"
    one = np.ones(4, np.float32)
    outside = {"save_as_external_data": True, "location": "m.bin", "size_threshold": 0}
    onnx.save(model(text, k=one, j=one), path, **outside)
    exe = tw.compile(path)
    np.testing.assert_array_equal(exe(one, k=2 * one), 3 * one)
    (tmp_path / "m.bin").write_bytes(np.full(8, 7, np.float32).tobytes())
    with pytest.raises(ModelError, match="has changed since it was compiled"):
        exe(one, j=one)


def test_an_artifact_holds_the_defaults(tmp_path: Path) -> None:
    source, x = model(SCALE, k=np.full(4, 2, np.float32)), real(4)
    tw.compile(source).save(tmp_path / "m.tw")
    loaded = tw.load(tmp_path / "m.tw")
    assert dict(loaded.defaults) == {"k": "float32[4]"}
    np.testing.assert_array_equal(loaded(x), 2 * x)
    with pytest.raises(
        InputError, match="the value of 'k' is compiled into the artifact"
    ) as info:
        loaded(x, k=x)
    assert (
        info.value.hint
        == "compile the model with inputs=['k'], and every call gives them"
    )
    tw.compile(source, inputs=["k"]).save(tmp_path / "free.tw")
    free = tw.load(tmp_path / "free.tw")
    assert [t.name for t in free.inputs] == ["k", "x"]
    np.testing.assert_array_equal(free(x, x), x * x)
    with pytest.raises(InputError, match="missing inputs: k"):
        free(x=x)


def test_what_cannot_be_made_an_input() -> None:
    source = model(CONV, w=W, b=B)
    with pytest.raises(
        InputError, match="there is no input with a default named 'x'"
    ) as info:
        tw.compile(source, inputs=["x"])
    assert info.value.hint == "the model has: 'w', 'b'"
    with pytest.raises(InputError, match="inputs='w'"):
        tw.compile(source, inputs="w")
    graph = load(source)
    with pytest.raises(
        InputError, match="a Graph has no defaults: they are its constants"
    ):
        tw.compile(graph)(X, w=W)
    assert [v.name for v in load(source, inputs=["b"]).inputs] == ["x", "b"]


def test_some_inputs_free_and_another_overridden() -> None:
    source = model(CONV, w=W, b=B)
    exe = tw.compile(source, inputs=["b"])
    assert dict(exe.defaults) == {"w": "float32[4, 3, 3, 3]"}
    w, b = real(4, 3, 3, 3), real(4)
    want = expected(source, x=X, w=w, b=b)
    np.testing.assert_allclose(exe(X, b, w=w), want, rtol=1e-4, atol=1e-5)


def test_a_sparse_default() -> None:
    source = model(SCALE)
    values = numpy_helper.from_array(np.array([5], np.float32), "k")
    where = numpy_helper.from_array(np.array([2]), "where")
    source.graph.sparse_initializer.append(
        helper.make_sparse_tensor(values, where, [4])
    )
    exe, x = tw.compile(source), real(4)
    np.testing.assert_array_equal(exe(x), x * np.array([0, 0, 5, 0], np.float32))
    np.testing.assert_array_equal(exe(x, k=x), x * x)
