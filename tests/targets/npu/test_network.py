"""ONNX models on the processor: the float model's results, or a refusal that says why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnx.helper as h
import pytest

import tilewright as tw
from tests.targets.loaded import compiler_rooms
from tilewright.base.errors import ArtifactError, UnsupportedError
from tilewright.driver import text
from tilewright.frontends.onnx.load import load
from tilewright.graph.interp import evaluate
from tilewright.graph.nodes import Graph
from tilewright.runtime import devices
from tilewright.targets import npu
from tilewright.targets.base import Calibration
from tilewright.targets.npu.description import machine
from tilewright.targets.npu.device import encode
from tilewright.targets.npu.device import load as load_program
from tilewright.targets.npu.target import Npu
from tilewright.targets.npu.whole import AsProgram

N = h.make_node
Shapes = Mapping[str, Sequence[int]]


def numbers(*shape: int) -> np.ndarray:
    rng = np.random.default_rng(sum(shape))
    return (rng.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32)


def model(
    nodes: Sequence[onnx.NodeProto], inputs: Shapes, outputs: Shapes, weights: Shapes
) -> onnx.ModelProto:
    values = [
        [
            h.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
            for name, shape in of.items()
        ]
        for of in (inputs, outputs)
    ]
    arrays = [
        onnx.numpy_helper.from_array(numbers(*s), name) for name, s in weights.items()
    ]
    graph = h.make_graph(nodes, "g", *values, arrays)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)


def scaled() -> Sequence[onnx.NodeProto]:
    """An attention head."""
    four = onnx.numpy_helper.from_array(np.array(4, np.float32))
    return [
        N("Constant", [], ["four"], value=four),
        N("Transpose", ["k"], ["kt"], perm=[1, 0]),
        N("MatMul", ["q", "kt"], ["s"]),
        N("Div", ["s", "four"], ["d"]),
        N("Softmax", ["d"], ["p"]),
        N("MatMul", ["p", "v"], ["y"]),
    ]


HIDDEN = {"hidden_size": 8}
MODELS = {
    "gemm": model(
        [N("Gemm", ["x", "W", "b"], ["t"], transB=1), N("Relu", ["t"], ["y"])],
        {"x": (1, 24)}, {"y": (1, 40)}, {"W": (40, 24), "b": (40,)},
    ),
    "equal biases": model(
        [N("Gemm", ["x", "W", "b"], ["t"]), N("Gemm", ["t", "V", "c"], ["y"])],
        {"x": (1, 8)}, {"y": (1, 8)}, {"W": (8, 8), "V": (8, 8), "b": (8,), "c": (8,)},
    ),
    "matmul": model(
        [N("MatMul", ["x", "W"], ["t"]), N("Add", ["t", "b"], ["u"]), N("Tanh", ["u"], ["y"])],
        {"x": (2, 3, 24)}, {"y": (2, 3, 40)}, {"W": (24, 40), "b": (40,)},
    ),
    "conv": model(
        [N("Conv", ["x", "K", "b"], ["t"], pads=[1, 0, 1, 2], strides=[2, 1]),
         N("Relu", ["t"], ["y"])],
        {"x": (1, 2, 5, 4)}, {"y": (1, 3, 3, 4)}, {"K": (3, 2, 3, 3), "b": (3,)},
    ),
    "images": model(
        [N("Conv", ["x", "K", "b"], ["y"], auto_pad="SAME_UPPER", strides=[2, 2])],
        {"x": (3, 2, 5, 4)}, {"y": (3, 3, 3, 2)}, {"K": (3, 2, 3, 3), "b": (3,)},
    ),
    "groups": model(
        [N("Conv", ["x", "K", "b"], ["y"], group=2)],
        {"x": (1, 4, 4, 4)}, {"y": (1, 6, 2, 2)}, {"K": (6, 2, 3, 3), "b": (6,)},
    ),
    "depthwise": model(
        [N("Conv", ["x", "K"], ["y"], group=3)],
        {"x": (2, 3, 3, 4)}, {"y": (2, 3, 2, 3)}, {"K": (3, 1, 2, 2)},
    ),
    "dilated": model(
        [N("Conv", ["x", "K"], ["y"], dilations=[2, 3], pads=[1, 0, 0, 2])],
        {"x": (1, 2, 5, 4)}, {"y": (1, 3, 2, 3)}, {"K": (3, 2, 3, 2)},
    ),
    "max": model(
        [N("MaxPool", ["x"], ["y"], kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 0, 1])],
        {"x": (2, 2, 4, 3)}, {"y": (2, 2, 2, 3)}, {},
    ),
    "average": model(
        [N("AveragePool", ["x"], ["t"], kernel_shape=[2, 2], pads=[1, 0, 0, 1],
           count_include_pad=1), N("GlobalAveragePool", ["t"], ["y"])],
        {"x": (2, 2, 3, 3)}, {"y": (2, 2, 1, 1)}, {},
    ),
    "attention": model(scaled(), dict.fromkeys("qkv", (3, 16)), {"y": (3, 16)}, {}),
    "lstm": model(
        [N("LSTM", ["x", "W", "R", "B"], ["y", "h"], **HIDDEN)],
        {"x": (2, 1, 6)}, {"y": (2, 1, 1, 8), "h": (1, 1, 8)},
        {"W": (1, 32, 6), "R": (1, 32, 8), "B": (1, 64)},
    ),
    "gru": model(
        [N("GRU", ["x", "W", "R", "B", "", "h0"], ["", "h"], **HIDDEN, direction="reverse")],
        {"x": (2, 1, 6), "h0": (1, 1, 8)}, {"h": (1, 1, 8)},
        {"W": (1, 24, 6), "R": (1, 24, 8), "B": (1, 48)},
    ),
    "gru-inside": model(
        [N("GRU", ["x", "W", "R", "B", "", "h0"], ["", "h"], **HIDDEN, linear_before_reset=1)],
        {"x": (1, 1, 6), "h0": (1, 1, 8)}, {"h": (1, 1, 8)},
        {"W": (1, 24, 6), "R": (1, 24, 8), "B": (1, 48)},
    ),
}  # fmt: skip
QUICK = ("gemm", "conv", "groups", "dilated", "max", "average")


def graph_of(made: onnx.ModelProto) -> Graph:
    return load(made)


def check(name: str) -> None:
    graph = graph_of(MODELS[name])
    feeds = {v.name: numbers(*v.extents) for v in graph.inputs}
    exe = tw.compile(graph, target="npu")
    real = evaluate(graph, feeds)
    for v, found in zip(graph.outputs, results(exe(feeds)), strict=True):
        assert found.shape == v.extents
        np.testing.assert_allclose(found, real[v.name], rtol=1e-5, atol=1e-6)
    (placed,) = exe.placements
    assert placed[0] == "npu" and "cycles" in placed[3]


def results(found: object) -> tuple[np.ndarray, ...]:
    return found if isinstance(found, tuple) else (found,)


def test_an_artifact_of_it_is_loaded_and_profiled(tmp_path: Path) -> None:
    graph = graph_of(MODELS["gemm"])
    feeds = {"x": numbers(1, 24)}
    exe = tw.compile(graph, target="npu")
    exe.save(tmp_path / "m.tw")
    again = tw.load(tmp_path / "m.tw")
    np.testing.assert_array_equal(again(feeds), exe(feeds))
    assert compiler_rooms(tmp_path / "m.tw") == []
    profile = again.profile(feeds, repeat=2)
    (row,) = profile.simulated
    assert row.device == "npu" and row.cycles and row.clock == 250e6
    listing = text(graph, "asm", target="npu").split("# g on npu\n")[1]
    listing = "\n".join(x for x in listing.splitlines() if not x.startswith("# copy"))
    assert npu.show(npu.parse(listing)).strip() == listing.strip()
    plan = text(graph, "plan", target="npu")
    assert 'call "npu::Program"(x_npu, W, b) -> y_npu on npu' in plan


def test_code_names_its_machine() -> None:
    mapped = Npu(npu.MACHINES["wide"])
    (op,) = mapped.adapt(graph_of(MODELS["gemm"]), Calibration(), None).graph.operations
    whole = mapped.operator(op)
    loaded = load_program(whole.code)
    assert loaded.machine == npu.MACHINES["wide"]
    assert encode(loaded.program, loaded.machine) == whole.code
    for wrong in (b"", b"{}", whole.code[:-9], whole.code.replace(b"Float", b"Flout")):
        with pytest.raises(ArtifactError, match="not an NPU program"):
            devices.find("npu").load(wrong)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", QUICK)
def test_a_model(name: str) -> None:
    check(name)


def test_equal_constants_are_one_operand() -> None:
    """As the driver makes them later: an operand of its own would have no memory."""
    made = AsProgram(machine("full")).run(graph_of(MODELS["equal biases"]))
    assert [v.name for v in made.operations[0].reads] == ["x", "W", "b"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if name not in QUICK])
def test_other_models(name: str) -> None:
    check(name)


def test_the_package_keeps_its_names() -> None:
    """No module that is imported later hides a function of the package."""
    assert all(not isinstance(getattr(npu, name), ModuleType) for name in npu.__all__)


def test_a_small_machine() -> None:
    """The same model on a machine without products of matrices."""
    graph = graph_of(MODELS["gemm"])
    feeds = {"x": numbers(1, 24)}
    found = tw.compile(graph, target="npu", machine="small")(feeds)
    np.testing.assert_allclose(found, evaluate(graph, feeds)["y"], rtol=1e-5, atol=1e-6)


REFUSED = {
    "operators": (
        [N("Erf", ["x"], ["t"]), N("Cos", ["t"], ["y"])], (2, 4), (2, 4),
        "does not do Erf, Cos; it does Add, AveragePool, Conv, Div",
    ),
    "axis": ([N("Softmax", ["x"], ["y"], axis=0)], (2, 4), (2, 4), "along axis 0"),
    "one dimension": (
        [N("Conv", ["x", "x"], ["y"])], (2, 2, 1), (2, 2, 1), "1 spatial dimensions, not 2",
    ),
    "counts": (
        [N("AveragePool", ["x"], ["y"], kernel_shape=[2, 2], pads=[1, 1, 0, 0])],
        (1, 1, 3, 3), (1, 1, 3, 3), "windows have different counts",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_cannot_do_is_said(name: str) -> None:
    nodes, shape, result, message = REFUSED[name]
    graph = graph_of(model(nodes, {"x": shape}, {"y": result}, {}))
    with pytest.raises(UnsupportedError, match=message):
        tw.compile(graph, target="npu")
