"""Sound ONNX models: names, types, functions, subgraphs, versions."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

from tilewright.base.errors import ModelError, TilewrightWarning, UnsupportedError
from tilewright.frontends.onnx import load
from tilewright.frontends.onnx.export import operation_to_onnx, to_model
from tilewright.frontends.onnx.host_fallback import make
from tilewright.frontends.onnx.reference import OnnxFallback, serialize
from tilewright.graph.interp import evaluate
from tilewright.graph.specialize import specialize
from tilewright.graph.verify import verify
from tilewright.testing.networks import NETWORKS


def reference(model, feeds):
    from onnx.reference import ReferenceEvaluator

    names = [o.name for o in model.graph.output]
    return dict(zip(names, ReferenceEvaluator(model).run(names, feeds), strict=True))


def check(model, feeds, rtol=1e-6):
    graph = load(model)
    verify(graph)
    found = evaluate(graph, feeds, fallback=OnnxFallback())
    for name, want in reference(model, feeds).items():
        np.testing.assert_allclose(found[name], want, rtol, 1e-6)
        assert np.asarray(found[name]).dtype == want.dtype
    return graph


def text(source):
    return parser.parse_model(source)


MLP = """
<ir_version: 8, opset_import: ["" : 17]>
mlp (float[N, 4] x) => (float[N, 2] y)
<float[4, 3] w = {1,2,3,4,5,6,7,8,9,10,11,12}, float[3, 2] v = {1,-1,2,-2,3,-3}>
{
  h = MatMul(x, w)
  r = Relu(h)
  y = MatMul(r, v)
}
"""


def test_symbolic_dimensions_stay_names_and_can_be_given():
    graph = load(text(MLP))
    assert graph.inputs[0].shape == ("N", 4)
    fixed = specialize(graph, {"N": 5}, fallback=OnnxFallback())
    assert fixed.outputs[0].shape == (5, 2)
    assert all(v.static for v in fixed.values)
    verify(fixed)


def test_values_and_dtypes_agree_with_the_reference():
    graph = check(
        text(MLP),
        {"x": np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)},
    )
    assert [op.op_type for op in graph.operations] == ["MatMul", "Relu", "MatMul"]


def test_shape_arithmetic_is_folded():
    model = text(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 3, 4] x) => (float[a, b] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] rest = {-1}>
        {
          s = Shape(x)
          b = Slice(s, zero, one)
          t = Concat<axis = 0>(b, rest)
          y = Reshape(x, t)
        }
        """
    )
    graph = check(model, {"x": np.zeros((2, 3, 4), np.float32)})
    assert [op.op_type for op in graph.operations] == ["Reshape"]
    assert graph.outputs[0].shape == (2, 12)


def test_every_form_of_constant():
    nodes = [
        helper.make_node("Constant", [], ["a"], value_float=2.0),
        helper.make_node("Constant", [], ["b"], value_floats=[1.0, 2.0]),
        helper.make_node("Constant", [], ["c"], value_int=3),
        helper.make_node("Constant", [], ["d"], value_ints=[1, 2]),
        helper.make_node("Constant", [], ["e"], value_string="s"),
        helper.make_node("Constant", [], ["f"], value_strings=["s", "t"]),
        helper.make_node(
            "Constant", [], ["g"], value=onnx.numpy_helper.from_array(np.ones(2))
        ),
    ]
    outputs = [helper.make_value_info(n, onnx.TypeProto()) for n in "abcdefg"]
    model = helper.make_model(helper.make_graph(nodes, "g", [], outputs))
    graph = load(model)
    shown = {v.name: v.type_text for v in graph.outputs}
    assert shown == {
        "a": "float32[]", "b": "float32[2]", "c": "int64[]", "d": "int64[2]",
        "e": "string[]", "f": "string[2]", "g": "float64[2]",
    }  # fmt: skip


def test_local_functions_are_inlined_with_their_attributes():
    model = text(
        """
        <ir_version: 8, opset_import: ["" : 17, "my" : 1]>
        g (float[2, 3] x) => (float[2, 3] y, float[2, 3] z)
        {
          y = my.scaled<alpha = 3.0>(x)
          z = my.scaled(y)
        }
        <domain: "my", opset_import: ["" : 17]>
        scaled <alpha: float = 2.0> (x) => (y)
        {
          a = Constant<value_float: float = @alpha>()
          y = Mul(x, a)
        }
        """
    )
    graph = load(model)
    verify(graph)
    assert [op.op_type for op in graph.operations] == ["Mul", "Mul"]
    found = evaluate(graph, {"x": np.ones((2, 3), np.float32)})
    np.testing.assert_array_equal(found["y"], np.full((2, 3), 3))
    np.testing.assert_array_equal(found["z"], np.full((2, 3), 6))


def test_bodies_of_onnx_functions_are_inlined():
    model = text(
        """
        <ir_version: 8, opset_import: ["" : 21]>
        g (float[2, 6, 3, 3] x, float[6] s, float[6] b) => (float[2, 6, 3, 3] y)
        { y = GroupNormalization<num_groups = 2>(x, s, b) }
        """
    )
    rng = np.random.default_rng(0)
    feeds = {
        "x": rng.normal(size=(2, 6, 3, 3)).astype(np.float32),
        "s": rng.normal(size=6).astype(np.float32),
        "b": rng.normal(size=6).astype(np.float32),
    }
    check(model, feeds, rtol=1e-4)


LOOP = """
<ir_version: 8, opset_import: ["" : 17]>
g (int64 n, float[2] x, float[2] c) => (float[2] y, float[k, 2] all)
{
  go = Constant<value: tensor = bool {1}>()
  y, all = Loop<body = body (int64 i, bool on, float[2] s) => (bool on2, float[2] t, float[2] u) {
    on2 = Identity(on)
    t = Add(s, c)
    u = Mul(t, t)
  }>(n, go, x)
}
"""


def test_loops_capture_values_of_the_graph_around_them():
    feeds = {"n": np.array(3), "x": np.ones(2, np.float32), "c": np.ones(2, np.float32)}
    graph = load(text(LOOP))
    verify(graph)
    found = evaluate(graph, feeds, fallback=OnnxFallback())
    np.testing.assert_array_equal(found["y"], [4, 4])
    np.testing.assert_array_equal(found["all"], [[4, 4], [9, 9], [16, 16]])


def test_an_if_whose_condition_is_known_becomes_its_branch():
    model = text(
        """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2] x, bool c) => (float[2] y)
        {
          y = If<then_branch = t () => (float[2] a) { a = Abs(x) },
                 else_branch = e () => (float[2] b) { b = Neg(x) }>(c)
        }
        """
    )
    graph = load(model)
    assert graph.operations[0].op_type == "If"
    known = specialize(graph, values={"c": np.array(False)}, fallback=OnnxFallback())
    assert [op.op_type for op in known.operations] == ["Neg"]
    verify(known)


def test_newer_versions_warn_and_are_tried():
    model = text(MLP)
    model.ir_version = 99
    model.opset_import[0].version = 99
    with pytest.warns(TilewrightWarning) as caught:
        graph = load(model)
    assert len(caught) == 2 and len(graph.operations) == 3


def test_a_graph_goes_back_to_onnx():
    model = text(MLP)
    again = to_model(load(model))
    feeds = {"x": np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)}
    np.testing.assert_allclose(
        reference(again, feeds)["y"], reference(model, feeds)["y"]
    )


def test_attributes_that_onnx_has_no_kind_for_go_there_and_back():
    """Of the compiler's own operators: None, and pairs of a name and numbers."""
    graph = NETWORKS["lstm"]().graph
    (kept, *_) = (op for op in graph.operations if op.op_type == "LSTMSteps")
    assert kept.attributes["clip"] is None
    model = to_model(graph)
    (again, *_) = (op for op in load(model).operations if op.op_type == "LSTMSteps")
    assert again.attributes["clip"] is None
    found, wanted = (op.attributes["activations"] for op in (again, kept))
    assert [*map(tuple, found)] == [*map(tuple, wanted)]
    (attribute, *_) = (
        a for n in model.graph.node for a in n.attribute if a.name == "activations"
    )
    attribute.s = b"[" * 100_000
    with pytest.raises(ModelError, match="JSON of attribute 'activations'"):
        load(model)


RELU = '<ir_version: 8, opset_import: ["": 18]> f (float[2] x) => (float[2] y) { y = Relu(x) }'


def test_a_string_that_its_author_calls_json_stays_a_string():
    ends = "(float[1, 4, 2, 2] x) => (float[1, 1, 4, 4] y)"
    body = '{ y = DepthToSpace<blocksize=2, mode="CRD">(x) }'
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> f {ends} {body}'
    )
    for attribute in model.graph.node[0].attribute:
        attribute.doc_string = "JSON"
    (op,) = load(model).operations
    assert (op.attributes["mode"], op.attributes["blocksize"]) == ("CRD", 2)


@pytest.mark.parametrize("value", [None, [1, "a"]])
def test_operators_of_others_have_no_attributes_as_json(value):
    """Programs that know them would not read it."""
    (op,) = load(parser.parse_model(RELU)).operations
    with pytest.raises((TypeError, ValueError)):
        operation_to_onnx(replace(op, attributes={"config": value}))


@pytest.mark.parametrize("op_type", ["NonZero", "Loop"])
def test_a_host_step_survives_json(op_type):
    import json

    if op_type == "Loop":
        graph, feeds = (
            load(text(LOOP)),
            [np.array(2), np.array(True), np.ones(2, np.float32)],
        )
        feeds.append(np.ones(2, np.float32))  # captured
        want = [[3, 3], [[4, 4], [9, 9]]]
    else:
        node = helper.make_node("NonZero", ["x"], ["y"])
        info = helper.make_tensor_value_info("x", TensorProto.FLOAT, (3,))
        out = helper.make_tensor_value_info("y", TensorProto.INT64, None)
        graph = load(helper.make_model(helper.make_graph([node], "g", [info], [out])))
        feeds, want = [np.array([0, 1, 2], np.float32)], [[[1, 2]]]
    stored = json.loads(json.dumps(serialize(graph.operations[-1])))
    found = make(op_type, stored)(feeds)
    for a, b in zip(found, want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("op_type", "domain", "words"),
    [
        ("Rellu", "", "Did you mean 'Relu'? Else define an operator with"),
        ("relu", "", "Did you mean 'Relu'?"),
        ("Gelu", "", "Import opset 20 of its domain"),
        ("FastGelu", "", "Did you mean the one of domain 'com.microsoft'?"),
        ("Relu", "com.acme", "Did you mean the one of domain 'ai.onnx'?"),
        ("Wxyzwxyz", "", ") at node 'n' on (float32[5]). Define an operator with"),
        ("PaddedAttentio", "", ". Did you mean 'Attention'?"),
    ],
)
def test_an_unknown_operator_has_a_hint(op_type, domain, words):
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [5]) for name in "xy"
    )
    node = helper.make_node(op_type, ["x"], ["y"], "n", domain=domain)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.acme", 1)]
    graph = helper.make_graph([node], "g", [x], [y])
    with pytest.raises(UnsupportedError) as caught:
        load(helper.make_model(graph, opset_imports=opsets))
    assert words in str(caught.value)
