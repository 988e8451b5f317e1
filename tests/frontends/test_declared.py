"""Declared types that differ from the inferred ones: refused or reported, as in ONNX Runtime."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.base.errors import ModelError, TilewrightWarning
from tilewright.frontends.onnx import load

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT32
Make = Callable[..., Any]
tensor: Make = helper.make_tensor_value_info


def model(
    output: Any,
    extent: int | str = 5,
    inner: Any = None,
    inputs: Any = (),
    initializers: Any = (),
    nodes: Any = None,
) -> Any:
    """y = |relu(x)| of a vector x, with these declarations of y and, inside, of z."""
    if nodes is None:
        nodes = [
            helper.make_node("Relu", ["x"], ["z"]),
            helper.make_node("Abs", ["z"], ["y"]),
        ]
    graph = helper.make_graph(
        nodes,
        "g",
        [tensor("x", FLOAT, [extent]), *inputs],
        [output],
        list(initializers),
        value_info=[] if inner is None else [inner],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def branches(then: Any) -> Any:
    """An If of which one branch declares its result like that."""

    def body(result: Any) -> Any:
        node = helper.make_node("Relu", ["x"], [result.name])
        return helper.make_graph([node], "branch", [], [result])

    node = helper.make_node(
        "If",
        ["c"],
        ["y"],
        then_branch=body(then),
        else_branch=body(tensor("b", FLOAT, [5])),
    )
    c = tensor("c", TensorProto.BOOL, [])
    return model(tensor("y", FLOAT, [5]), inputs=[c], nodes=[node])


def with_default(declared: Any) -> Any:
    """x + w, where w is an input of that type with five values as its default."""
    array = onnx.numpy_helper.from_array(np.ones(5, np.float32), "w")
    add = helper.make_node("Add", ["x", "w"], ["y"])
    return model(
        tensor("y", FLOAT, [5]), inputs=[declared], initializers=[array], nodes=[add]
    )


def peer_refuses(proto: Any) -> bool:
    """Whether ONNX Runtime refuses to load a model."""
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    proto.ir_version = 9
    try:
        runtime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception:
        return True
    return False


@pytest.mark.parametrize(
    ("proto", "words"),
    [
        (model(tensor("y", FLOAT, [7])), "'y' is declared as float32[7], but is float32[5]"),
        (model(tensor("y", FLOAT, [5, 1])), "float32[5, 1]"),
        (model(tensor("y", FLOAT, [7, 1]), "n"), "float32[7, 1], but is float32[n]"),
        (model(tensor("y", FLOAT, [5]), inner=tensor("z", FLOAT, [7])), "'z' is declared"),
        (branches(tensor("a", FLOAT, [7])), "'a' is declared"),
        (model(tensor("x", INT, [5])), "'x' is declared as int32[5], but is float32[5]"),
    ],
    ids=["extent", "rank", "rank of symbols", "inside", "branch", "passed on"],
)  # fmt: skip
def test_another_shape_is_reported(proto: Any, words: str) -> None:
    assert not peer_refuses(proto)
    with pytest.warns(TilewrightWarning) as caught:
        load(proto)
    assert [str(w.message) for w in caught] and words in str(caught[0].message)


@pytest.mark.parametrize(
    ("proto", "words"),
    [
        (model(tensor("y", INT, [5])), ["'y'", "as int32[5]", "computes float32[5]"]),
        (
            model(helper.make_tensor_sequence_value_info("y", FLOAT, [5])),
            ["'y'", "sequence(float32[5])"],
        ),
        (model(tensor("y", FLOAT, [5]), inner=tensor("z", INT, [5])), ["'z'"]),
        (branches(tensor("a", INT, [5])), ["'a'", "int32[5]"]),
        (with_default(tensor("w", FLOAT, [7])), ["'w'", "float32[7]"]),
        (with_default(tensor("w", FLOAT, [5, 1])), ["'w'", "float32[5, 1]"]),
        (with_default(tensor("w", INT, [5])), ["'w'", "int32[5]"]),
        (
            with_default(helper.make_tensor_sequence_value_info("w", FLOAT, [5])),
            ["'w'", "sequence(float32[5])"],
        ),
    ],
    ids="dtype kind inside branch default-extent default-rank default-dtype default-kind".split(),
)
def test_another_element_type_is_refused(proto: Any, words: list[str]) -> None:
    assert peer_refuses(proto)
    with pytest.raises(ModelError) as caught:
        load(proto)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    "proto",
    [
        model(tensor("y", FLOAT, [5])),
        model(tensor("y", FLOAT, None)),
        model(tensor("y", FLOAT, [])),
        model(tensor("y", FLOAT, ["n"])),
        model(tensor("y", FLOAT, [-1])),
        model(tensor("y", FLOAT, ["other"]), "n"),
        model(tensor("y", FLOAT, [7]), "n"),
        model(onnx.ValueInfoProto(name="y")),
        model(tensor("y", FLOAT, [5]), inner=tensor("y", INT, [7])),
        with_default(tensor("w", FLOAT, ["n"])),
        with_default(tensor("w", FLOAT, None)),
    ],
    ids="same none scalar name negative names fixed untyped twice default default-none".split(),
)
def test_what_may_be_the_same_is_accepted_in_silence(proto: Any) -> None:
    assert not peer_refuses(proto)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(proto)


def test_many_differences_are_one_warning() -> None:
    other = tensor("z", FLOAT, [7])
    with pytest.warns(TilewrightWarning) as caught:
        load(model(tensor("y", FLOAT, [9]), inner=other))
    (warning,) = caught
    assert "and 1 other likewise" in str(warning.message)


@pytest.mark.filterwarnings("ignore")
def test_a_graph_may_hand_out_its_inputs_and_initializers() -> None:
    values = np.array([1, 2], np.float32)
    y = onnx.numpy_helper.from_array(values, "y")
    info = tensor("y", FLOAT, [2])
    proto = model(tensor("x", FLOAT, [5]), initializers=[y], nodes=[])
    proto.graph.output.append(info)
    x = np.arange(5, dtype=np.float32)
    passed, given = tw.compile(proto)(x)
    np.testing.assert_array_equal(passed, x)
    np.testing.assert_array_equal(given, values)


def test_a_graph_without_outputs_is_a_model() -> None:
    proto = model(tensor("x", FLOAT, [5]), nodes=[])
    del proto.graph.output[:]
    onnx.checker.check_model(proto)
    with pytest.warns(
        TilewrightWarning, match="has no outputs, so nothing is computed"
    ):
        graph = load(proto)
    assert [v.name for v in graph.inputs] == ["x"] and not graph.outputs
