"""Models that ask for nonsense or for too much: refused by name, at once, before any allocation."""

import time

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tilewright as tw
from tests.robust.models import FLOAT, INT64, calling, model, node
from tilewright.base.errors import MemoryLimitError, ModelError, UnsupportedError

HUGE = [10**6, 10**6]
IMAGE = {"x": (FLOAT, [1, 1, 8, 8])}
VECTOR = {"x": (FLOAT, [4])}


def refused(source, *texts, error=ModelError):
    """One line that holds the texts, in time, without touching the memory it speaks of."""
    before = time.process_time()
    with pytest.raises(error) as caught:
        tw.compile(source, cache=False)
    assert (
        time.process_time() - before < 60
    )  # a second at most; what it speaks of takes hours
    for text in texts:
        assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("op", "inputs", "constants", "attributes"),
    [
        ("ConstantOfShape", {}, {"s": np.array(HUGE)}, {}),
        ("Tile", {"x": (FLOAT, [1, 1])}, {"s": np.array(HUGE)}, {}),
        ("Range", {}, {"a": np.array(0), "b": np.array(10**13), "c": np.array(1)}, {}),
        ("Pad", {"x": (FLOAT, [1, 1])}, {"p": np.array([*HUGE, 0, 0])}, {}),
        ("MaxPool", IMAGE, {}, {"kernel_shape": HUGE, "pads": [10**6 - 1] * 4}),
        (
            "ConvTranspose",
            IMAGE,
            {"w": np.ones((1, 1, 3, 3), np.float32)},
            {"strides": HUGE},
        ),
        ("Mul", {"a": (FLOAT, [10**6, 1]), "b": (FLOAT, [1, 10**6])}, {}, {}),
        (
            "OneHot",
            {"i": (INT64, [10])},
            {"d": np.array(10**12), "v": np.array([0, 1], np.float32)},
            {},
        ),
        ("RandomNormal", {}, {}, {"shape": HUGE}),
        ("Relu", {"x": (FLOAT, [2**62, 2**62])}, {}, {}),
        # No elements, but no address reaches the others.
        ("Relu", {"x": (FLOAT, [2**40, 2**40, 0])}, {}, {}),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_absurd_sizes(op, inputs, constants, attributes):
    names = [*inputs, *constants]
    source = model(
        [node(op, names, ["y"], "n", **attributes)], inputs, constants=constants
    )
    refused(source, "limit", error=MemoryLimitError)


def test_absurd_sizes_of_resize():
    scales = {"s": np.array([1, 1, 1e6, 1e6], np.float32)}
    source = model(
        [node("Resize", ["x", "", "s"], ["y"], "n")], IMAGE, constants=scales
    )
    refused(source, "limit", error=MemoryLimitError)


@pytest.mark.parametrize("scale", [np.inf, np.nan, -1])
def test_scales_that_are_none(scale):
    scales = {"s": np.array([1, 1, scale, 1], np.float32)}
    source = model(
        [node("Resize", ["x", "", "s"], ["y"], "n")], IMAGE, constants=scales
    )
    refused(source, "'n'", "scale")


def test_initializers_without_elements_out_of_reach():
    source = model([node("Identity", ["w"], ["y"])], {})
    for raw in (None, b""):
        tensor = onnx.TensorProto(
            name="w", data_type=FLOAT, dims=[2**32, 2**32, 0], raw_data=raw
        )
        del source.graph.initializer[:]
        source.graph.initializer.append(tensor)
        refused(source, "'w'", error=MemoryLimitError)


def test_initializers_are_counted_together():
    source = model([node("Add", ["x", "w0"], ["y"])], VECTOR)
    for n in range(4):
        sparse = onnx.SparseTensorProto(dims=[10**6])
        sparse.values.CopyFrom(numpy_helper.from_array(np.ones(1, np.float32), f"w{n}"))
        sparse.indices.CopyFrom(numpy_helper.from_array(np.array([7]), "i"))
        source.graph.sparse_initializer.append(sparse)
    with pytest.raises(MemoryLimitError, match=r"'w2'.*initializers up to here"):
        tw.compile(source, cache=False, memory_limit=10**7)


@pytest.mark.parametrize(
    ("op", "inputs", "constants", "attributes", "text"),
    [
        ("Tile", VECTOR, {"s": np.array([-7])}, {}, "[-28]"),
        (
            "OneHot",
            {"i": (INT64, [4])},
            {"d": np.array(-5), "v": np.array([0, 1], np.float32)},
            {},
            "[4, -5]",
        ),
        (
            "MaxPool",
            IMAGE,
            {},
            {"kernel_shape": [2, 2], "strides": [0, 0]},
            "less than 1",
        ),
        (
            "Conv",
            IMAGE,
            {"w": np.ones((1, 1, 3, 3), np.float32)},
            {"group": 0},
            "group=0",
        ),
        (
            "Conv",
            IMAGE,
            {"w": np.ones((1, 1, 3, 3), np.float32)},
            {"strides": [1.5, 2.5]},
            "'strides': expected INTS, got FLOATS",
        ),
        (
            "LeakyRelu",
            VECTOR,
            {},
            {"alpha": [1, 2]},
            "'alpha': expected FLOAT, got INTS",
        ),
        ("Concat", VECTOR, {}, {"axis": "zero"}, "'axis': expected INT, got STRING"),
        ("Cast", VECTOR, {}, {}, "'to' is missing"),
        ("Relu", {}, {}, {}, "input 0"),
        ("Relu", {"x": (FLOAT, [1]), "z": (FLOAT, [1])}, {}, {}, "at most 1"),
        ("Add", {"x": (FLOAT, [1]), "z": (INT64, [1])}, {}, {}, "'z') is int64"),
        (
            "Range",
            {},
            {"a": np.float32(0), "b": np.float32(np.nan), "c": np.float32(1)},
            {},
            "NaN",
        ),
    ],
)
def test_uses_against_the_rules_name_the_node(op, inputs, constants, attributes, text):
    names = [*inputs, *constants]
    source = model(
        [node(op, names, ["y"], "n", **attributes)], inputs, constants=constants
    )
    refused(source, "node 'n'", text)


@pytest.mark.parametrize(
    ("op", "constants", "results", "text"),
    [
        ("TopK", {"k": np.array([2])}, ["y"], r"output 1 \(Indices\) is missing"),
        ("Relu", {}, ["y", "z"], "has 2 outputs, Relu has at most 1"),
    ],
)
def test_results_that_are_none_or_not_listed(op, constants, results, text):
    inputs = {"x": (FLOAT, [5])}
    source = model([node(op, [*inputs, *constants], results, "n")], inputs,
                   constants=constants)  # fmt: skip
    with pytest.raises(ModelError, match=text):
        tw.compile(source, cache=False)


def test_an_operand_left_out():
    refused(
        model([node("Add", ["x", ""], ["y"], "n")], VECTOR), "node 'n'", "input 1 (B)"
    )


@pytest.mark.parametrize(
    "bodies",
    [
        [[node("F0", ["x"], ["y"], domain="f")]],
        [
            [node("F1", ["x"], ["y"], domain="f")],
            [node("F0", ["x"], ["y"], domain="f")],
        ],
    ],
    ids=["itself", "one another"],
)
def test_functions_that_call_themselves(bodies):
    refused(calling(bodies), "deep", "recursive")


def test_a_few_functions_with_too_many_nodes(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_NODE_LIMIT", "1000")
    doubled = [
        [
            node(f"F{n + 1}", ["x"], ["a"], domain="f"),
            node(f"F{n + 1}", ["a"], ["y"], domain="f"),
        ]
        for n in range(40)
    ]
    refused(
        calling([*doubled, [node("Relu", ["x"], ["y"])]]), "1,000 nodes", "NODE_LIMIT"
    )


def test_a_file_of_too_many_nodes():
    source = model([], {"a0": (FLOAT, [4])}, ["a0"])
    one = node("Relu", ["a0"], ["b"])
    source.graph.node.extend([one] * 100_001)
    refused(source.SerializeToString(), "100,000 nodes")


def test_protobuf_nested_too_deep():
    def wrapped(field: int, data: bytes) -> bytes:
        size, out = len(data), b""
        while size > 127:
            out += bytes([size & 127 | 128])
            size >>= 7
        return bytes([field << 3 | 2]) + out + bytes([size]) + data

    data = b""
    for _ in range(2000):
        data = wrapped(1, wrapped(5, wrapped(6, data)))  # node, attribute, subgraph
    refused(wrapped(7, data), "not an ONNX model")


@pytest.mark.parametrize(
    "header", [b"\x3a\xff\xff\xff\xff\x07", b"\x3a" + b"\xff" * 10]
)
def test_a_header_that_claims_gigabytes(header):
    refused(header + b"a" * 100, "not an ONNX model")


def test_names_are_only_names(tmp_path, monkeypatch):
    """Names from the model reach no path, format string, attribute or C identifier."""
    monkeypatch.chdir(tmp_path)
    odd = "x\n\x00{0.__class__}%s`$(touch pwned)`"
    source = model([node("Relu", [odd], ["../../y\n"], "n\x1b[31m")], {odd: (FLOAT, [1])},
                   ["../../y\n"])  # fmt: skip
    exe = tw.compile(source, cache=False)
    assert exe({odd: np.array([-1], np.float32)}).tolist() == [0]
    exe.save(tmp_path / "m.tw")
    assert tw.load(tmp_path / "m.tw").inputs[0].name == odd
    assert [p.name for p in tmp_path.iterdir()] == ["m.tw"]


def test_attributes_of_python_are_not_touched():
    source = model([node("Relu", ["x"], ["y"], __class__=3, __init__=[1])], VECTOR)
    assert tw.compile(source, cache=False)(np.ones(4, np.float32)).tolist() == [1] * 4
    foreign = model([node("system", ["x"], ["y"], "n", domain="os")], VECTOR)
    foreign.opset_import.append(helper.make_opsetid("os", 1))
    refused(foreign, "os::system", error=UnsupportedError)
