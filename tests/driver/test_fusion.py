"""Fusion switched off, the survey's examples, and what explanations say of fusion."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.helper as h
import onnx.parser
import onnx.reference
import pytest
from onnx import TensorProto, numpy_helper

import tilewright as tw
from tilewright.base.errors import InputError
from tilewright.driver import schedules
from tilewright.driver.options import Options
from tilewright.driver.stages import planned
from tilewright.plan.nodes import Plan

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'
SIBLINGS = f"""{HEAD}siblings (float[32,64] x) => (float[32] s, float[32] m) {{
  rows = Constant<value_ints = [1]>()
  s = ReduceSum<keepdims=0>(x, rows)
  m = ReduceMax<keepdims=0>(x, rows)
}}"""
CHAIN = f"""{HEAD}chain (float[4,6] x) => (float[3,8] y) {{
  shape = Constant<value_ints = [3, 8]>()
  a = Relu(x) b = Reshape(a, shape) t = Transpose(b) c = Neg(t) y = Transpose(c)
}}"""


def inception(channels: int, reduced: tuple[int, int]) -> onnx.ModelProto:
    """GoogLeNet's block of four branches: 14 operators; ReLUs are counted with convolutions."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []

    def conv(x: str, y: str, inputs: int, outputs: int, k: int) -> str:
        scale = np.float32(inputs * k * k) ** -0.5
        w = rng.standard_normal((outputs, inputs, k, k), dtype=np.float32) * scale
        b = rng.standard_normal(outputs, dtype=np.float32)
        weights.extend(
            numpy_helper.from_array(a, f"{y}.{n}") for n, a in (("w", w), ("b", b))
        )
        pads = [k // 2] * 4
        nodes.append(
            h.make_node("Conv", [x, f"{y}.w", f"{y}.b"], [f"{y}.c"], pads=pads)
        )
        nodes.append(h.make_node("Relu", [f"{y}.c"], [y]))
        return y

    first, second = reduced
    parts = [
        conv("x", "a", channels, 16, 1),
        conv(conv("x", "b", channels, first, 1), "b3", first, 16, 3),
        conv(conv("x", "c", channels, second, 1), "c5", second, 16, 5),
    ]
    pool = {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [1, 1]}
    nodes.append(h.make_node("MaxPool", ["x"], ["p"], **pool))
    parts.append(conv("p", "d", channels, 16, 1))
    nodes.append(h.make_node("Concat", parts, ["y"], axis=1))
    shape = [1, channels, 14, 14]
    graph = h.make_graph(
        nodes,
        "inception",
        [h.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [h.make_tensor_value_info("y", TensorProto.FLOAT, [1, 64, 14, 14])],
        weights,
    )
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 21)], ir_version=10)


def plan_of(model: Any, **options: Any) -> Plan:
    plan, _ = planned(
        model, (), None, Options(mcpu="x86-64-v3", records=False, **options)
    )
    return plan


def same_as_reference(model: onnx.ModelProto, x: Any, **options: Any) -> None:
    want: Any = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    exe: Any = tw.compile(model, cache=False, records=False, **options)
    got = exe(x)
    for a, b in zip([got] if len(want) == 1 else got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("reduced", [(32, 32), (32, 16)])
def test_inceptions_block(reduced: tuple[int, int]) -> None:
    """The convolutions before the larger windows are one; all write where the result is joined."""
    model = inception(64, reduced)
    assert len(model.graph.node) == 14
    names = [g.name for g in plan_of(model).groups if not g.name.endswith(".halo")]
    kernels = {name.split(" F(")[0] for name in names}
    assert len(kernels) == 6  # Winograd's method is several for one
    apart = [
        g for g in plan_of(model, fusion=False).groups if not g.name.endswith(".halo")
    ]
    assert len(apart) >= 14
    x = np.random.default_rng(1).standard_normal((1, 64, 14, 14), dtype=np.float32)
    same_as_reference(model, x)
    same_as_reference(model, x, fusion=False)


def test_sibling_reductions_are_one_kernel() -> None:
    model = onnx.parser.parse_model(SIBLINGS)
    (group,) = plan_of(model).groups
    assert len(group.writes) == 2
    assert len(plan_of(model, fusion=False).groups) == 2
    same_as_reference(
        model, np.random.default_rng(2).random((32, 64), dtype=np.float32)
    )


def test_without_fusion_views_alone_move_nothing() -> None:
    """Of a Reshape nothing is left, of a Transpose a copy."""
    model = onnx.parser.parse_model(CHAIN)
    apart = plan_of(model, fusion=False)
    assert [len(g.sources) for g in apart.groups].count(2) == 1
    assert len(apart.groups) == 4 and len(plan_of(model).groups) == 1
    x = np.random.default_rng(3).standard_normal((4, 6), dtype=np.float32)
    same_as_reference(model, x, fusion=False)


NORM = "n = BatchNormalization(c, f, f, f, f) y = Relu(n)"
APART = {
    "a normalization is no part of a convolution": (
        f"c = Conv<pads=[1,1,1,1]>(x, w) {NORM}",
        3,
    ),
    "nor a product and a sum": (f"c = Relu(x) {NORM}", 3),
    "nor are two convolutions one": (
        "a = Conv<pads=[1,1,1,1]>(x, w) b = Conv<pads=[1,1,1,1]>(x, v) y = Add(a, b)",
        3,
    ),
    "nor are padding before a convolution and a cut behind it its own": (
        "e = Constant<value_ints = [0, 0, 1, 1, 0, 0, 2, 2]>() p = Pad(x, e) "
        "c = Conv<pads=[1,1,1,1]>(p, w) n = Constant<value_ints = [6, 6]>() "
        "o = Constant<value_ints = [0, 0]>() a = Constant<value_ints = [2, 3]>() "
        "y = Slice(c, o, n, a)",
        3,
    ),
    "nor does a substitution save arithmetic": (
        "a = Relu(x) b = Neg(a) y = Sub(x, b)",
        3,
    ),
}


@pytest.mark.parametrize("why", APART)
def test_without_fusion_every_operator_is_one(why: str) -> None:
    body, count = APART[why]
    model = onnx.parser.parse_model(
        f"{HEAD}apart (float[1,4,6,6] x) => (float[1,4,6,6] y) {{ {body} }}"
    )
    rng = np.random.default_rng(4)
    shapes = {"w": (4, 4, 3, 3), "v": (4, 4, 3, 3), "f": 4}
    for name, shape in shapes.items():
        weight = rng.uniform(0.5, 1, shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))

    def kernels(**options: Any) -> int:
        plan = plan_of(model, **options)
        return len([g for g in plan.groups if not g.name.endswith(".halo")])

    assert kernels(fusion=False) == count > kernels()
    x = rng.standard_normal((1, 4, 6, 6), dtype=np.float32)
    same_as_reference(model, x, fusion=False)


def test_explanations_say_what_was_fused() -> None:
    model = onnx.parser.parse_model(SIBLINGS)
    (record,) = schedules(model, mcpu="x86-64-v3", records=False)
    assert record.fused == ("fused: reducesum and reducemax (one reduction)",)
    assert record.fused[0] in record.reasons
    assert record.to_dict()["fused"] == list(record.fused)


def test_explanations_say_what_was_kept_apart_and_why() -> None:
    found = schedules(inception(64, (32, 20)), mcpu="x86-64-v3", records=False)
    said = {line for r in found for line in r.fused if line.startswith("not fused")}
    assert len(said) == 1
    assert "one kernel is expected to take" in said.pop()


def test_what_is_no_switch_is_refused() -> None:
    with pytest.raises(InputError, match="fusion='no'"):
        Options(fusion="no")  # type: ignore[arg-type]


def test_a_model_is_not_found_in_the_cache_in_its_other_form() -> None:
    assert Options().decisive != Options(fusion=False).decisive


GATES = {
    "SwiGLU": "a = MatMul(x, w) s = Sigmoid(a) g = Mul(a, s) b = MatMul(x, v) y = Mul(g, b)",
    "GEGLU": "a = Gemm(x, w, p) g = Gelu(a) b = Gemm(x, v, p) y = Mul(g, b)",
}


@pytest.mark.covering(1)  # each gate; one row and several
@pytest.mark.parametrize("rows", [1, 33])
@pytest.mark.parametrize("kind", GATES)
def test_a_gate_is_the_epilogue_of_one_of_its_products(kind: str, rows: int) -> None:
    """Neither what it gates nor the gate is a tensor of its own: one product's result alone is."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]>\n'
        f"gate (float[{rows}, 24] x) => (float[{rows}, 40] y) {{ {GATES[kind]} }}"
    )
    rng = np.random.default_rng(3)
    for name, shape in (("w", (24, 40)), ("v", (24, 40)), ("p", (40,))):
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    first, second = plan_of(model).groups
    assert first.writes[-1] in second.reads and second.computations[-1].is_map
    assert not any(g.is_map for g in (first, second))
    said = [line for r in schedules(model, records=False) for line in r.fused]
    assert any(line.endswith("(epilogue)") for line in said)
    same_as_reference(model, rng.standard_normal((rows, 24)).astype(np.float32))


def test_a_chain_of_single_numbers_too_long_for_one_map_follows_a_reduction() -> None:
    steps = " ".join(f"t{n + 1} = Tanh(t{n})" for n in range(50))
    source = f"""{HEAD}g (float[5] x) => (float t50) {{
        t0 = ReduceMean<keepdims = 0>(x) {steps}
    }}"""
    model = onnx.parser.parse_model(source)
    x = np.linspace(0, 2, 5, dtype=np.float32)
    (want,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(tw.compile(model, cache=False)(x), want, rtol=1e-5)
