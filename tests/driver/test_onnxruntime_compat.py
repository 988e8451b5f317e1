"""Code for ONNX Runtime runs on compiled models, beside ONNX Runtime itself."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import tilewright as tw
import tilewright.onnxruntime_compat as ours
from tests.cli.conftest import make, perceptron_model
from tilewright.base.errors import (
    InputError,
    TilewrightError,
    TilewrightWarning,
    UnsupportedError,
)

theirs = pytest.importorskip("onnxruntime")
X = np.random.default_rng(0).standard_normal((2, 8), dtype=np.float32)


def several() -> bytes:
    """Inputs and outputs of several types, one of them without axes."""
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Add", ["a", "b"], ["sum"]),
        helper.make_node("Cast", ["a"], ["half"], to=TensorProto.FLOAT16),
        helper.make_node("Less", ["a", "b"], ["less"]),
    ]
    double = TensorProto.DOUBLE
    outputs = {
        "sum": (double, ["n"]),
        "half": (TensorProto.FLOAT16, ["n"]),
        "less": (TensorProto.BOOL, ["n"]),
    }
    model = make(nodes, {"a": (double, ["n"]), "b": (double, [])}, outputs)
    return bytes(model.SerializeToString())


@pytest.fixture(scope="module")
def model() -> bytes:
    return bytes(perceptron_model("batch").SerializeToString())


@pytest.fixture(scope="module")
def session(model: bytes) -> Any:
    return ours.InferenceSession(model)


def used(ort: ModuleType, model: bytes) -> dict[str, Any]:
    """What a program that knows nothing of us does, and sees."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.add_free_dimension_override_by_name("batch", 2)
    session = ort.InferenceSession(
        model, sess_options=options, providers=["CPUExecutionProvider"]
    )
    name = session.get_inputs()[0].name
    binding = session.io_binding()
    binding.bind_cpu_input(name, X)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    into = ort.OrtValue.ortvalue_from_numpy(np.zeros((2, 4), np.float32))
    other = session.io_binding()
    other.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(2 * X))
    other.bind_ortvalue_output("y", into)
    session.run_with_iobinding(other)
    return {
        "inputs": [(v.name, v.type, v.shape) for v in session.get_inputs()],
        "outputs": [(v.name, v.type, v.shape) for v in session.get_outputs()],
        "providers": session.get_providers(),
        "all": session.run(None, {name: X})[0],
        "named": session.run(["y"], {name: X})[0],
        "bound": binding.copy_outputs_to_cpu()[0],
        "value": binding.get_outputs()[0].numpy(),
        "into": into.numpy(),
        "type": (into.shape(), into.data_type(), into.device_name().lower()),
    }


def test_a_program_does_not_see_the_difference(model):
    ours_said, theirs_said = used(ours, model), used(theirs, model)
    assert ours_said.keys() == theirs_said.keys()
    for key, expected in theirs_said.items():
        if isinstance(expected, np.ndarray):
            np.testing.assert_allclose(ours_said[key], expected, rtol=1e-5, err_msg=key)
        elif key not in ("inputs", "outputs"):
            assert ours_said[key] == expected, key
    assert ours_said["inputs"] == [("x", "tensor(float)", [2, 8])]


@pytest.mark.parametrize("content", ["perceptron", "several"])
def test_names_types_and_symbolic_shapes_are_the_same(model, content):
    given = model if content == "perceptron" else several()

    def seen(ort: ModuleType) -> list[Any]:
        session = ort.InferenceSession(given, providers=["CPUExecutionProvider"])
        arguments = [*session.get_inputs(), *session.get_outputs()]
        return [(v.name, v.type, v.shape) for v in arguments]

    assert seen(ours) == seen(theirs)


def test_outputs_are_in_the_order_asked_for():
    feed = {"a": np.arange(3.0), "b": np.float64(1.5)}
    feed["b"] = np.asarray(feed["b"])
    for names in (None, ["less", "sum"], ["half"]):
        mine = ours.InferenceSession(several()).run(names, feed)
        other = theirs.InferenceSession(
            several(), providers=["CPUExecutionProvider"]
        ).run(names, feed)
        assert [m.dtype for m in mine] == [o.dtype for o in other]
        for m, o in zip(mine, other, strict=True):
            np.testing.assert_array_equal(m, o)


def test_an_artifact_is_a_session(model, tmp_path):
    import tilewright as tw

    tw.compile(model, dims={"batch": 2}).save(tmp_path / "m.tw")
    found = ours.InferenceSession(tmp_path / "m.tw").run(None, {"x": X})[0]
    expected = ours.InferenceSession(model).run(None, {"x": X})[0]
    np.testing.assert_array_equal(found, expected)
    options = ours.SessionOptions()
    options.add_free_dimension_override_by_name("batch", 2)
    with pytest.raises(InputError, match="already compiled"):
        ours.InferenceSession(tmp_path / "m.tw", options)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("enable_profiling", True, "SessionOptions.enable_profiling = True"),
        ("inter_op_num_threads", 4, "SessionOptions.inter_op_num_threads = 4"),
        ("execution_mode", ours.ExecutionMode.ORT_PARALLEL, "execution_mode"),
        ("optimized_model_filepath", "m.onnx", "optimized_model_filepath"),
        ("intra_op_threads", 2, "Did you mean 'intra_op_num_threads'"),
        ("dims", {}, "no setting 'dims'"),
    ],
)
def test_settings_without_a_counterpart_are_refused_by_name(name, value, said):
    with pytest.raises(InputError, match=said):
        setattr(ours.SessionOptions(), name, value)


def test_settings_are_honored(model):
    options = ours.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ours.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_free_dimension_override_by_name("batch", 2)
    session = ours.InferenceSession(model, options)
    assert session._executable.threads == 1
    # Without fusion each of the three operators is a kernel.
    assert len(session._executable.model.kernels) >= 3
    with pytest.raises(InputError, match=r"session configuration 'a\.b'"):
        options.add_session_config_entry("a.b", "1")
    with pytest.raises(InputError, match=r"tilewright\.onnxruntime_compat\.SessionOpt"):
        ours.InferenceSession(model, theirs.SessionOptions())


def test_other_providers_are_ignored_with_a_warning(model):
    with pytest.warns(TilewrightWarning, match="CUDAExecutionProvider are ignored"):
        ours.InferenceSession(
            model,
            providers=[
                ("CUDAExecutionProvider", {"device_id": 0}),
                "CPUExecutionProvider",
            ],
        )


def test_what_a_model_has_not_is_refused_by_name(session):
    with pytest.raises(InputError, match="no output is called 'z'"):
        session.run(["z"], {"x": X})
    with pytest.raises(InputError, match="no input is called 'z'"):
        session.run(None, {"x": X, "z": X})
    with pytest.raises(InputError, match="missing inputs: x"):
        session.run(None, {})
    with pytest.raises(InputError, match=r"'y', not a list.*write \['y'\]"):
        session.run("y", {"x": X})
    with pytest.raises(InputError, match="the inputs are a ndarray, not a mapping"):
        session.run(None, X)
    with pytest.raises(InputError, match="run_options"):
        session.run(None, {"x": X}, theirs.RunOptions())
    with pytest.raises(TilewrightError, match="'x'"):
        session.run(None, {"x": X.astype(np.float64)})
    binding = session.io_binding()
    with pytest.raises(InputError, match="no input is called 'z'"):
        binding.bind_cpu_input("z", X)
    with pytest.raises(InputError, match="device 'cuda'"):
        binding.bind_output("y", "cuda")


def described() -> bytes:
    proto = perceptron_model("batch")
    proto.producer_name, proto.model_version, proto.domain = "maker", 3, "com.acme"
    proto.doc_string, proto.graph.doc_string = "a model", "a graph"
    proto.metadata_props.add(key="names", value="{0: 'cat'}")
    return bytes(proto.SerializeToString())


def test_what_the_author_says_of_a_model(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(described())
    meta = theirs.InferenceSession(path).get_modelmeta()
    for source in (path, described()):
        session = ours.InferenceSession(source)
        path.unlink(missing_ok=True)  # it is not read again
        found = session.get_modelmeta()
        for name in vars(found):
            assert getattr(found, name) == getattr(meta, name), name
    artifact = tmp_path / "model.tw"
    tw.compile(described(), dims={"batch": 2}).save(artifact)
    with pytest.raises(InputError, match="only an ONNX model has metadata"):
        ours.InferenceSession(artifact).get_modelmeta()


def test_an_exported_program_has_no_metadata(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "m.pt2"
    program = torch.export.export(torch.nn.ReLU(), (torch.zeros(3),))
    torch.export.save(program, path)
    session = ours.InferenceSession(path)
    with pytest.raises(InputError, match="only an ONNX model has metadata"):
        session.get_modelmeta()


def test_ort_values_in_and_out(model: bytes) -> None:
    (name,) = (v.name for v in ours.InferenceSession(model).get_inputs())
    (want,) = ours.InferenceSession(model).run(None, {name: X})
    for runtime in (ours, theirs):
        session = runtime.InferenceSession(model)
        value = runtime.OrtValue.ortvalue_from_numpy(X)
        (found,) = session.run_with_ort_values(None, {name: value})
        np.testing.assert_allclose(found.numpy(), want, rtol=1e-5)


def test_what_is_absent_says_what_to_write_instead(model: bytes) -> None:
    session: Any = ours.InferenceSession(model)
    session.disable_fallback()
    for refused in (lambda: session.run_async(None, {}), lambda: named("RunOptions")()):
        with pytest.raises(
            UnsupportedError, match=r"ONNX Runtime's .* is not supported"
        ):
            refused()
    with pytest.raises(AttributeError):
        session.missing
    with pytest.raises(AttributeError):
        named("Missing")


def named(name: str) -> Any:
    return getattr(ours, name)
