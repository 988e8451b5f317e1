"""Operators of models that are defined by tensor expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright import te as t
from tilewright.base.errors import TilewrightError
from tilewright.graph.ops import registry
from tilewright.operators import OpDef, register

X = np.random.default_rng(1).standard_normal((4, 24), dtype=np.float32)


def wave(op: Any, x: t.Tensor) -> t.Tensor:
    k = t.reduce_axis((0, x.shape[1]), name="k")
    total = t.compute((x.shape[0],), lambda i: t.sum(x[i, k], axis=k), name="total")
    scale = op.attr("scale", 1.0)
    value = lambda i, j: t.sin(x[i, j]) * scale + total[i]  # noqa: E731
    return t.compute(tuple(x.shape), value, name="wave")


def scheduled(op: Any, x: t.Tensor) -> t.Schedule:
    y = wave(op, x)
    s = t.create_schedule(y.op)
    s[y].vectorize(s[y].split(s[y].op.axis[1], 8)[1])
    return s


def scripted(op: Any, x: t.Tensor) -> t.Tensor:
    return t.extern_primfunc([x], t.create_prim_func([x, wave(op, x)]), name="wave")


def model() -> onnx.ModelProto:
    """Two of them, with operators of ONNX's around."""
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("TeWave", ["a"], ["b"], domain="com.acme", scale=0.5),
        helper.make_node("TeWave", ["b"], ["c"], domain="com.acme"),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 24]) for n in "xy")
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.acme", 1)]
    return helper.make_model(
        helper.make_graph(nodes, "waves", [x], [y]), opset_imports=imports, ir_version=9
    )


def reference(op: Any, x: np.ndarray) -> list[np.ndarray]:
    return [np.sin(x) * op.attr("scale", 1.0) + x.sum(1, keepdims=True)]


@pytest.fixture(autouse=True)
def own_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators of these tests are gone behind them: with them models are not kept in the cache."""
    registry.registered()
    monkeypatch.setattr(registry, "_definitions", dict(registry._definitions))


@pytest.fixture
def define() -> Callable[..., None]:
    def defined(function: Callable[..., Any], infer: Any = None) -> None:
        same = lambda op: [(op.dtype(0), op.shape(0))]  # noqa: E731
        register(
            OpDef(
                "TeWave",
                domain="com.acme",
                infer=infer or same,
                compute=t.operator(function),
                reference=reference,
            ),
            replace=True,
        )

    return defined


@pytest.mark.parametrize("function", [wave, scheduled, scripted])
def test_in_a_model(define: Any, function: Any) -> None:
    define(function)
    exe = tw.compile(model())
    a = np.abs(X)
    b = np.sin(a) * 0.5 + a.sum(1, keepdims=True)
    c = np.sin(b) + b.sum(1, keepdims=True)
    np.testing.assert_allclose(exe(X), np.maximum(c, 0), rtol=1e-5)


@pytest.mark.parametrize(
    "function, message",
    [
        (
            lambda op, x: t.compute((4,), lambda i: x[i, 0], name="short"),
            "infer promises",
        ),
        (lambda op, x: x, "it returns its input"),
        (lambda op, x: 3, "it makes 3"),
    ],
)
def test_what_does_not_fit(define: Any, function: Any, message: str) -> None:
    define(function)
    with pytest.raises(TilewrightError, match=message):
        tw.compile(model())
