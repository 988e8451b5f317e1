"""`tw.compile` from a model to results: formats in, shapes, memory, the kernel cache."""

from __future__ import annotations

import weakref
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.base import events
from tilewright.base.errors import InputError, TilewrightWarning, UnsupportedError
from tilewright.driver import steps, text


def model(
    nodes: list[Any], inputs: dict[str, list[Any]], weights: dict[str, Any]
) -> Any:
    last = nodes[-1].output[0]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
            for n, s in inputs.items()
        ],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)],
        [
            onnx.numpy_helper.from_array(np.asarray(a, np.float32), n)
            for n, a in weights.items()
        ],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )


rng = np.random.default_rng(0)
W1 = rng.standard_normal((50, 33)).astype(np.float32) * 0.1
W2 = rng.standard_normal((33, 10)).astype(np.float32) * 0.1
B1 = rng.standard_normal(33).astype(np.float32)


def perceptron(batch: int | str) -> Any:
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"]),
        helper.make_node("Add", ["h", "b1"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["y"]),
    ]
    return model(nodes, {"x": [batch, 50]}, {"w1": W1, "w2": W2, "b1": B1})


def expected(x: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(x.astype(np.float64) @ W1 + B1, 0) @ W2)


def sample(batch: int) -> np.ndarray:
    return np.random.default_rng(batch).standard_normal((batch, 50)).astype(np.float32)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_perceptron_is_one_native_call_of_two_kernels(threads: int) -> None:
    exe = tw.compile(perceptron(7), threads=threads, cache=False)
    x = sample(7)
    np.testing.assert_allclose(exe(x), expected(x), rtol=1e-5, atol=1e-5)
    assert len(exe.model.steps) == 1
    assert len(exe.model.kernels) == 2


def test_a_model_comes_from_a_path_bytes_or_proto(tmp_path: Path) -> None:
    proto = perceptron(3)
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    x = sample(3)
    for source in (path, str(path), proto.SerializeToString(), proto):
        np.testing.assert_allclose(
            tw.compile(source, cache=False)(x), expected(x), atol=1e-5
        )


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(InputError, match="compile the class Graph; give an instance"):
        tw.compile(tw.Graph)
    with pytest.raises(InputError, match="cannot compile a list"):
        tw.compile([1, 2])
    with pytest.raises(InputError, match="math="):
        tw.compile(perceptron(1), math="wild")


def test_a_symbolic_batch_compiles_per_value_and_keeps_what_it_made() -> None:
    exe = tw.compile(perceptron("N"), cache=False)
    assert exe.inputs[0].shape == (None, 50)
    for batch in (1, 4, 1):
        x = sample(batch)
        np.testing.assert_allclose(exe(x), expected(x), rtol=1e-5, atol=1e-5)
    with events.record() as log:
        exe(sample(4))
    assert not [e for e in log if e.kind == "kernel"]
    fixed = tw.compile(perceptron("N"), dims={"N": 5}, cache=False)
    assert fixed.inputs[0].shape == (5, 50)


def test_a_symbol_has_one_value_per_call() -> None:
    nodes = [helper.make_node("Add", ["a", "b"], ["y"])]
    exe = tw.compile(model(nodes, {"a": ["N", 2], "b": ["N", 2]}, {}), cache=False)
    with pytest.raises(InputError, match=r"input 'b'.*N is 3 in input 'a'"):
        exe(np.zeros((3, 2), np.float32), np.zeros((4, 2), np.float32))


def test_the_kernel_cache_spares_the_second_compilation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    x = sample(6)
    made = []
    for _ in range(2):
        with events.record() as log:
            exe = tw.compile(perceptron(6))
        np.testing.assert_allclose(exe(x), expected(x), rtol=1e-5, atol=1e-5)
        made.append(len([e for e in log if e.kind == "kernel"]))
    assert made == [2, 0]


def test_layers_of_one_shape_share_a_kernel() -> None:
    w = {f"w{n}": rng.standard_normal((20, 20)) * 0.1 for n in range(4)}
    nodes = [
        helper.make_node("MatMul", [f"t{n}", f"w{n}"], [f"t{n + 1}"]) for n in range(4)
    ]
    exe = tw.compile(model(nodes, {"t0": [5, 20]}, w), cache=False)
    assert len(exe.model.kernels) == 4
    assert len(exe.model.objects) == 2  # one kernel and the segment


def test_a_result_takes_the_place_of_an_input_that_dies() -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("Softmax", ["t"], ["s"], axis=0),
        helper.make_node("Sigmoid", ["s"], ["u"]),
        helper.make_node("MatMul", ["s", "u"], ["y"]),
    ]
    exe = tw.compile(model(nodes, {"x": [64, 64]}, {}), cache=False)
    x = rng.standard_normal((64, 64)).astype(np.float32)
    e = np.exp(x.T - x.T.max(0))
    s = e / e.sum(0)
    np.testing.assert_allclose(exe(x), s @ (1 / (1 + np.exp(-s))), rtol=1e-4)


def test_an_operator_without_native_code_says_so_or_is_an_error() -> None:
    nodes = [
        helper.make_node("RandomUniformLike", ["x"], ["r"]),
        helper.make_node("Floor", ["r"], ["y"]),
    ]
    with pytest.warns(TilewrightWarning, match="RandomUniformLike"):
        exe = tw.compile(model(nodes, {"x": [4]}, {}), cache=False)
    np.testing.assert_array_equal(exe(np.ones(4, np.float32)), [0, 0, 0, 0])
    with pytest.raises(UnsupportedError, match="RandomUniformLike"):
        tw.compile(model(nodes, {"x": [4]}, {}), cache=False, fallback="error")


@pytest.mark.parametrize(
    "kind", ["graph", "plan", "computation", "kernel", "llvm", "asm"]
)
def test_every_stage_can_be_printed(kind: str) -> None:
    shown = text(perceptron(7), kind)
    assert {"graph": "MatMul", "llvm": "define void", "asm": "vfmadd"}.get(
        kind, "relu"
    ) in shown


def test_an_older_processor_can_be_asked_for() -> None:
    assert "zmm" not in text(perceptron(7), "asm", mcpu="x86-64-v3")
    assert "fmla" in text(perceptron(7), "asm", mcpu="neoverse-n1")


def test_exact_math_keeps_products_and_sums_apart() -> None:
    assert "vfmadd" in text(perceptron(7), "asm", mcpu="x86-64-v4")
    assert "vfmadd" not in text(perceptron(7), "asm", mcpu="x86-64-v4", math="exact")
    x = sample(7)
    exe = tw.compile(perceptron(7), math="exact", cache=False)
    np.testing.assert_allclose(exe(x), expected(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("mcpu", "first"),
    [
        ("sapphirerapids", ["keep-blocks", "integer-products"]),
        ("x86-64-v3", ["keep-blocks", "fold-constants"]),  # no dot products of bytes
    ],
)
def test_passes_are_named_and_timed(mcpu: str, first: list[str]) -> None:
    with events.record() as log:
        text(perceptron(2), "graph", mcpu=mcpu)
    names = [e.fields["name"] for e in log if e.kind == "pass" and "name" in e.fields]
    assert names[: len(first)] == first and "fold-batchnorm" in names


def test_every_room_is_passed_through_once() -> None:
    # Substitutions are priced by plans of the graph around each.
    with events.record() as log:
        tw.compile(perceptron(7), cache=False, optimize="off")
    named = [str(e.fields["pipeline"]) for e in log if e.kind == "pass"]
    assert [name for name, _ in groupby(named)] == ["graph", "plan", "memory"]
    spans = ("import", "lower", "kernels", "assemble")
    assert [e.kind for e in log if e.kind in spans] == list(spans)


def test_weights_that_passes_replace_are_freed_before_others_are_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channels = {n: rng.random(8) for n in ("scale", "bias", "mean", "var")}
    weights = {"w": rng.standard_normal((8, 8, 9, 9)), **channels}
    conv = helper.make_node("Conv", ["x", "w"], ["c"])
    norm = helper.make_node("BatchNormalization", ["c", *channels], ["y"])
    onnx.save(model([conv, norm], {"x": [1, 8, 9, 9]}, weights), tmp_path / "m.onnx")
    imported, compiled = steps.import_model, steps.kernels
    alive: list[weakref.ref[Any]] = []

    def observed(*arguments: Any) -> Any:
        graph = imported(*arguments)
        alive.extend(map(weakref.ref, graph.constants.values()))
        return graph

    def checked(*arguments: Any) -> Any:
        seen.append([r() is None for r in alive])
        return compiled(*arguments)

    seen: list[list[bool]] = []
    monkeypatch.setattr(steps, "import_model", observed)
    monkeypatch.setattr(steps, "kernels", checked)
    tw.compile(tmp_path / "m.onnx", cache=False)
    assert seen == [[True] * len(weights)]


def test_native_is_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_MCPU", "x86-64-v3")
    assert "zmm" not in text(perceptron(7), "asm")
    assert text(perceptron(7), "asm") == text(perceptron(7), "asm", mcpu="x86-64-v3")
    monkeypatch.setenv("TILEWRIGHT_MCPU", "z80")
    with pytest.raises(UnsupportedError, match=r"^unknown processor 'z80'"):
        text(perceptron(7), "asm")
