"""Whole networks on every vector width: SSE4, AVX2 and this machine's give what NumPy gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.targets.registry import target

Array = np.ndarray[Any, Any]
LEVELS = ("x86-64-v2", "x86-64-v3", "native")


def require(level: str) -> None:
    if not target("cpu", level).runs_here:
        pytest.skip(f"this machine is not a {level}")


def network(text: str, weights: dict[str, Array]) -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 21]>\n{text}'
    )
    arrays = [numpy_helper.from_array(a, name) for name, a in weights.items()]
    model.graph.initializer.extend(arrays)
    return model


def normal(rng: np.random.Generator, *shape: int) -> Array:
    """Random weights whose products with unit vectors stay of unit size."""
    depth = int(np.prod(shape[1:])) if len(shape) > 2 else shape[0]
    return (rng.standard_normal(shape) / depth**0.5).astype(np.float32)


def lenet(rng: np.random.Generator) -> onnx.ModelProto:
    """Convolutions of 5x5 and 3x3, both poolings, and linear layers with odd extents."""
    weights = {
        "w1": normal(rng, 6, 1, 5, 5), "b1": normal(rng, 6), "w2": normal(rng, 16, 6, 5, 5),
        "b2": normal(rng, 16), "w3": normal(rng, 32, 16, 3, 3), "w4": normal(rng, 800, 84),
        "b4": normal(rng, 84), "w5": normal(rng, 84, 10), "b5": normal(rng, 10),
    }  # fmt: skip
    return network(
        """lenet (float[3, 1, 28, 28] x) => (float[3, 10] y) {
          c1 = Conv<pads = [2, 2, 2, 2]>(x, w1, b1)
          r1 = Relu(c1)
          p1 = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r1)
          c2 = Conv(p1, w2, b2)
          r2 = Tanh(c2)
          p2 = AveragePool<kernel_shape = [2, 2], strides = [2, 2]>(r2)
          c3 = Conv<pads = [1, 1, 1, 1]>(p2, w3)
          r3 = Relu(c3)
          f = Flatten(r3)
          g4 = Gemm(f, w4, b4)
          r4 = Relu(g4)
          g5 = Gemm(r4, w5, b5)
          y = Softmax(g5)
        }""",
        weights,
    )


def attention(rng: np.random.Generator) -> onnx.ModelProto:
    """A block of a transformer: attention of three heads, normalization, GELU, residuals."""
    weights = {name: normal(rng, 48, 48) for name in ("wq", "wk", "wv", "wo")}
    weights |= {
        "w1": normal(rng, 48, 100),
        "b1": normal(rng, 100),
        "w2": normal(rng, 100, 48),
    }
    weights |= {
        "g": normal(rng, 48) + 1,
        "b": normal(rng, 48),
        "scale": np.float32([0.25]),
    }
    heads = "".join(
        f"""{n} = MatMul(x, w{n})
          {n}s = Reshape({n}, split)
          {n}h = Transpose<perm = {perm}>({n}s)
        """
        for n, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3]))
    )
    weights |= {"split": np.array([2, 19, 3, 16]), "whole": np.array([2, 19, 48])}
    return network(
        f"""block (float[2, 19, 48] x) => (float[2, 19, 48] y) {{
          {heads}
          s = MatMul(qh, kh)
          t = Mul(s, scale)
          p = Softmax<axis = -1>(t)
          o = MatMul(p, vh)
          oh = Transpose<perm = [0, 2, 1, 3]>(o)
          os = Reshape(oh, whole)
          u = MatMul(os, wo)
          r = Add(x, u)
          n = LayerNormalization<axis = -1>(r, g, b)
          h = MatMul(n, w1)
          hb = Add(h, b1)
          a = Gelu(hb)
          z = MatMul(a, w2)
          y = Add(r, z)
        }}""",
        weights,
    )


def recurrent(rng: np.random.Generator) -> onnx.ModelProto:
    """A bidirectional LSTM with initial states, and a linear layer on all of its outputs."""
    weights = {
        "w": normal(rng, 2, 68, 9),
        "r": normal(rng, 2, 68, 17),
        "v": normal(rng, 34, 5),
    }
    weights |= {"b": normal(rng, 2, 136)}
    weights |= {"h0": normal(rng, 2, 3, 17), "c0": normal(rng, 2, 3, 17)}
    weights |= {"rows": np.array([21, 34])}
    return network(
        """lstm (float[7, 3, 9] x) => (float[21, 5] y, float[2, 3, 17] h, float[2, 3, 17] c) {
          t, h, c = LSTM<hidden_size = 17, direction = "bidirectional">(x, w, r, b, , h0, c0)
          tt = Transpose<perm = [0, 2, 1, 3]>(t)
          flat = Reshape(tt, rows)
          y = MatMul(flat, v)
        }""",
        weights,
    )


NETWORKS = {"lenet": lenet, "attention": attention, "lstm": recurrent}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_agree_with_the_reference(name: str, level: str) -> None:
    require(level)
    rng = np.random.default_rng(5)
    model = NETWORKS[name](rng)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = rng.standard_normal(shape).astype(np.float32)
    want = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    got: Any = tw.compile(model, mcpu=level, threads=2, cache=False)(x)
    for g, w in zip(got if len(want) > 1 else [got], want, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-5)


def quantized(rng: np.random.Generator) -> onnx.ModelProto:
    """Two convolutions, a residual and a linear layer in QDQ form; bytes in, bytes out."""
    nodes, arrays = [], {"xs": np.float32(0.02), "xz": np.uint8(117)}

    def byte(shape: tuple[int, ...]) -> Array:
        return rng.integers(-128, 128, shape).astype(np.int8)

    def layer(
        op: str, x: str, y: str, shape: tuple[int, ...], scale: float, **more: Any
    ) -> None:
        channels = shape[0]
        arrays[f"w_{y}"], arrays[f"ws_{y}"] = (
            byte(shape),
            np.linspace(1, 2, channels, dtype="f"),
        )
        arrays[f"ws_{y}"] *= np.float32(0.01)
        arrays[f"wz_{y}"] = np.zeros(channels, np.int8)
        arrays[f"b_{y}"] = rng.standard_normal(channels).astype(np.float32)
        weights = [f"w_{y}", f"ws_{y}", f"wz_{y}"]
        nodes.append(helper.make_node("DequantizeLinear", weights, [f"wr_{y}"], axis=0))
        nodes.append(helper.make_node(op, [x, f"wr_{y}", f"b_{y}"], [f"r_{y}"], **more))
        quantize(f"r_{y}", y, scale)

    def quantize(x: str, y: str, scale: float) -> None:
        arrays[f"s_{y}"], arrays[f"z_{y}"] = np.float32(scale), np.uint8(131)
        ends = [f"s_{y}", f"z_{y}"]
        nodes.append(helper.make_node("QuantizeLinear", [x, *ends], [f"q_{y}"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"q_{y}", *ends], [y]))

    nodes.append(helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["real"]))
    layer("Conv", "real", "a", (12, 5, 3, 3), 0.1, pads=[1, 1, 1, 1])
    layer("Conv", "a", "c", (12, 12, 3, 3), 0.4, pads=[1, 0, 1, 2])
    nodes.append(helper.make_node("Add", ["a", "c"], ["sum"]))
    quantize("sum", "e", 0.4)
    nodes.append(helper.make_node("Flatten", ["e"], ["flat"]))
    layer("Gemm", "flat", "f", (10, 12 * 63), 40.0, transB=1)
    graph = helper.make_graph(
        nodes,
        "quantized",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [2, 5, 9, 7])],
        [helper.make_tensor_value_info("q_f", TensorProto.UINT8, [2, 10])],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in arrays.items()],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    )


@pytest.mark.sampled(2)  # without and with instructions for bytes
@pytest.mark.parametrize("level", LEVELS)
def test_a_quantized_network_is_off_by_one_byte_at_most(level: str) -> None:
    require(level)
    rng = np.random.default_rng(6)
    model = quantized(rng)
    x = rng.integers(0, 256, (2, 5, 9, 7)).astype(np.uint8)
    (want,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    assert len(np.unique(want)) > 10
    got = tw.compile(model, mcpu=level, threads=1, cache=False)(x)
    assert np.abs(got.astype(int) - want.astype(int)).max() <= 1
