"""What operators' definitions raise on nonsense names the node, whoever raises it."""

import numpy as np
import pytest
from onnx import helper

import tilewright as tw
from tests.robust.models import FLOAT, INT64, model, node
from tilewright.base.errors import (
    CompileError,
    ExecutionError,
    MemoryLimitError,
    ModelError,
    TilewrightError,
)
from tilewright.graph.nodes import DataDependent, Operation, Value
from tilewright.graph.ops import registry
from tilewright.graph.ops.errors import definition_of_node
from tilewright.graph.ops.registry import OpDef, register

IMAGE = np.ones((1, 2, 4, 4), np.float32)
ROW = np.ones((2, 3), np.float32)
TWO, THREE = np.ones(2, np.float32), np.ones(3, np.float32)
SCALES = np.array([1, 1, 2, 2], np.float32)
# operator, constants, attributes, opset, words of the message
BROKEN = [
    (
        "GatherElements",
        (ROW, np.full((2, 3), 7)),
        {},
        21,
        "out of range for an extent of 2",
    ),
    (
        "GatherElements",
        (ROW, np.zeros((2, 4), int)),
        {"axis": 0},
        21,
        "reach beyond data [2, 3]",
    ),
    ("EyeLike", (TWO,), {}, 21, "expected a matrix, got 1 dimensions"),
    ("NegativeLogLikelihoodLoss", (ROW, np.array([0, 9])), {}, 21, "out of range"),
    ("LRN", (IMAGE,), {"size": 0}, 21, "size is 0"),
    ("LRN", (IMAGE,), {"size": -3}, 21, "size is -3"),
    (
        "BatchNormalization",
        (IMAGE, TWO, TWO, TWO, THREE),
        {},
        21,
        "var has the shape [3]",
    ),
    ("Einsum", (ROW,), {"equation": "ij->ii"}, 21, "repeats a letter"),
    ("HannWindow", (np.array([3, 4]),), {}, 21, "do not broadcast"),
    ("HammingWindow", (np.array(3),), {"output_datatype": 77}, 21, "77"),
    ("BlackmanWindow", (np.array(2**60),), {}, 21, "memory limit"),
    ("Upsample", (IMAGE, SCALES), {}, 10, "not an operator since version 10"),
    (
        "ReduceSum",
        (ROW,),
        {"axes": [1]},
        21,
        "attribute 'axes' belongs to another version",
    ),
    ("Clip", (ROW,), {"min": 0.5}, 21, "attribute 'min' belongs to another version"),
    ("RegexFullMatch", (np.array(["a"], object),), {"pattern": "("}, 21, "regex"),
    (
        "Split",
        (THREE,),
        {"num_outputs": 10**9},
        21,
        "num_outputs is 1000000000, but there are 1",
    ),
    ("Resize", (IMAGE, TWO, TWO, np.array([1, 2, 4, 2**31])), {}, 21, "memory limit"),
    ("Reshape", (ROW, np.array([2**62, 2**62])), {}, 21, "node 'n'"),
    ("Tile", (ROW, np.array([2**62, 2**62])), {}, 21, "memory limit"),
]


@pytest.fixture(autouse=True)
def own_definitions(monkeypatch):
    """What a test registers is forgotten after it."""
    registry.registered()
    known = {k: list(v) for k, v in registry._definitions.items()}
    monkeypatch.setattr(registry, "_definitions", known)


def compiled(op, constants, attributes, opset=21, domain=""):
    names = [f"c{n}" for n in range(len(constants))]
    made = node(op, names, ["y"], "n", domain=domain, **attributes)
    source = model([made], {}, ["y"], dict(zip(names, constants)), opset)
    if domain:
        source.opset_import.append(helper.make_opsetid(domain, 2))
    return tw.compile(source, cache=False)


@pytest.mark.parametrize(("op", "constants", "attributes", "opset", "words"), BROKEN)
def test_folding_what_breaks_the_rules(op, constants, attributes, opset, words):
    with pytest.raises(TilewrightError) as caught:
        compiled(op, constants, attributes, opset)
    assert words in str(caught.value)
    assert op in str(caught.value) or " n/" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_attributes_of_an_older_label_encoder():
    given = {"classes_strings": ["a", "b"]}
    with pytest.raises(
        ModelError, match=r"'n' .*classes_strings.* belongs to another version"
    ):
        compiled("LabelEncoder", (np.array([1, 2]),), given, domain="ai.onnx.ml")


def test_attributes_that_no_version_has_are_notes():
    made = node("Unique", ["x"], ["y"], note_of_an_exporter=3)
    exe = tw.compile(model([made], {"x": (FLOAT, [3])}), cache=False)
    assert exe(np.array([3, 1, 3], np.float32)).tolist() == [1, 3]


def test_a_neighborhood_beyond_all_channels_is_all_of_them():
    source = model(
        [node("LRN", ["x"], ["y"], size=10**12)], {"x": (FLOAT, [1, 2, 4, 4])}
    )
    got = tw.compile(source, cache=False)(IMAGE * 1000)
    np.testing.assert_allclose(
        got, IMAGE * 1000 / (1 + 1e-4 / 10**12 * 2e6) ** 0.75, rtol=1e-6
    )


def test_statistics_of_the_wrong_length_are_not_read_beyond_their_end():
    names = ["x", "s", "b", "m", "v"]
    shapes = {n: (FLOAT, [1 if n == "b" else 2]) for n in names[1:]}
    made = node("BatchNormalization", names, ["y"], "n")
    with pytest.raises(ModelError, match=r"'n'.*B has the shape \[1\], expected \[2\]"):
        tw.compile(model([made], {"x": (FLOAT, [1, 2, 4]), **shapes}), cache=False)


# ------------------------------------------------------------------------------- the boundary

OP = Operation("Foo", (), (Value("y"),), {}, "acme", 1, "n")


@pytest.mark.parametrize(
    "error",
    [IndexError("i"), ValueError("v"), TypeError("t"), OverflowError("o"), AssertionError("a"),
     KeyError("k"), RuntimeError("r"), StopIteration(), OSError("os")],
    ids=lambda e: type(e).__name__,
)  # fmt: skip
def test_whatever_is_raised_becomes_an_error_of_ours(error):
    with pytest.raises(ModelError) as caught, definition_of_node(OP):
        raise error
    assert caught.value.__cause__ is error
    assert caught.value.code == "TW-DEFINITION"
    assert str(caught.value).startswith("node 'n' (acme::Foo): ")
    assert type(error).__name__ in str(caught.value)


def test_the_message_of_a_foreign_error_is_kept_short():
    with (
        pytest.raises(ExecutionError) as caught,
        definition_of_node(OP, "ran", ExecutionError),
    ):
        raise ValueError("x\n" * 10**6)
    assert len(str(caught.value)) < 500 and "\n" not in str(caught.value)


def test_memory_that_ends_is_a_limit():
    with pytest.raises(
        MemoryLimitError, match=r"'n'.*more memory than is available: 64 TiB"
    ):
        with definition_of_node(OP):
            raise MemoryError("64 TiB")


@pytest.mark.parametrize(
    "error", [DataDependent("x"), KeyboardInterrupt(), RecursionError()]
)
def test_what_is_no_error_of_the_definition_passes(error):
    with pytest.raises(type(error)) as caught, definition_of_node(OP):
        raise error
    assert caught.value is error


def test_our_own_errors_get_the_node_once():
    with pytest.raises(ModelError) as caught, definition_of_node(OP):
        raise ModelError("no")
    assert str(caught.value) == "node 'n' (acme::Foo): no"
    with pytest.raises(CompileError) as known, definition_of_node(OP):
        raise CompileError("no", where="kernel k")
    assert str(known.value) == "kernel k: no"


FAILING = {
    "infer": lambda: {"infer": _fails},
    "static_value": lambda: {"static_value": _fails},
    "decompose": lambda: {"decompose": _fails},
    "compute": lambda: {"compute": _fails},
    "reference": lambda: {"reference": _fails},
    "flops": lambda: {"flops": _fails, "reference": lambda op, x: [x]},
}


def _fails(*arguments):
    raise IndexError("deep inside")


@pytest.mark.parametrize("part", FAILING)
def test_every_part_of_a_definition_is_inside_the_boundary(part):
    name = f"Failing{part}"
    given = {"infer": lambda op: [(op.dtype(0), op.shape(0))], **FAILING[part]()}
    register(OpDef(name, domain="test.boundary", **given))
    made = node(name, ["x"], ["y"], "n", domain="test.boundary")
    for inputs, constants in (({"x": (FLOAT, [3])}, {}), ({}, {"x": THREE})):
        source = model([made], inputs, ["y"], constants)
        source.opset_import.append(helper.make_opsetid("test.boundary", 1))
        if inputs and part in ("reference", "flops"):
            continue  # it is not asked before it runs
        with pytest.raises(
            TilewrightError, match=r"'n' \(test.boundary::Failing.*deep"
        ) as caught:
            tw.compile(source, cache=False)
        assert isinstance(caught.value.__cause__, IndexError)


def test_a_reference_that_fails_at_run_time_names_the_node():
    register(
        OpDef(
            "FailsLater",
            domain="test.boundary",
            infer=lambda op: [(op.dtype(0), op.shape(0))],
            reference=_fails,
        )
    )
    made = node("FailsLater", ["x"], ["y"], "n", domain="test.boundary")
    source = model([made], {"x": (INT64, [3])})
    source.opset_import.append(helper.make_opsetid("test.boundary", 1))
    with pytest.warns(tw.TilewrightWarning, match="falls back to the host"):
        exe = tw.compile(source, cache=False)
    with pytest.raises(
        ExecutionError, match=r"'n' \(test.boundary::FailsLater\).*deep inside"
    ) as caught:
        exe(np.zeros(3, np.int64))
    assert str(caught.value).count("node 'n'") == 1


def test_a_reference_of_another_type_than_the_rule_says_what_is_wrong():
    register(
        OpDef(
            "Shorter",
            domain="test.boundary",
            infer=lambda op: [(op.dtype(0), op.shape(0))],
            reference=lambda op, x: [x[:2]],
        )
    )
    made = node("Shorter", ["x"], ["y"], "n", domain="test.boundary")
    source = model([made], {"x": (INT64, [3])})
    source.opset_import.append(helper.make_opsetid("test.boundary", 1))
    with pytest.warns(tw.TilewrightWarning, match="falls back to the host"):
        exe = tw.compile(source, cache=False)
    with pytest.raises(ExecutionError, match=r"^node 'n': .*reference.*type rule"):
        exe(np.zeros(3, np.int64))
