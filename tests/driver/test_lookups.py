"""Tables read at places that tables gave: code must not grow by a factor with every step."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.driver import text

TABLES = {
    "a": np.linspace(-1, 1, 5, dtype=np.float32),
    "b": np.array([3, 1, 4, 2, 0]),
    "c": np.array([2, 0, 1, 4, 3]),
    "axes": np.array([1]),
}


def steps(count):
    """A row's sum of what is found after `count` steps from place to place."""
    nodes, at = [], "start"
    for k in range(count):
        nodes += [helper.make_node("Gather", [t, at], [f"{t}{k}"]) for t in "abc"]
        nodes += [
            helper.make_node("GatherElements", ["x", at], [f"g{k}"], axis=1),
            helper.make_node("Greater", [f"g{k}", f"a{k}"], [f"m{k}"]),
            helper.make_node("Where", [f"m{k}", f"b{k}", f"c{k}"], [f"at{k}"]),
        ]
        at = f"at{k}"
    nodes += [
        helper.make_node("Gather", ["a", at], ["w"]),
        helper.make_node("ReduceSum", ["w", "axes"], ["y"], keepdims=0),
    ]
    given = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 5]),
        helper.make_tensor_value_info("start", TensorProto.INT64, [4, 5]),
    ]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])]
    tables = [numpy_helper.from_array(a, n) for n, a in TABLES.items()]
    graph = helper.make_graph(nodes, "g", given, made, tables)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )


def test_code_grows_in_proportion_and_finds_the_same():
    rng = np.random.default_rng(0)
    x, start = rng.normal(size=(4, 5)).astype(np.float32), rng.integers(-5, 5, (4, 5))
    model = steps(6)
    assert len(text(model, "llvm")) < 600_000
    (want,) = ReferenceEvaluator(model).run(None, {"x": x, "start": start})
    np.testing.assert_allclose(
        tw.compile(model, cache=False)(x, start), want, rtol=1e-5
    )
