"""A folder with one small network, built once for all tests of the benchmarks."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import models


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    models.build("squeezenet", directory)
    return directory


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A two-operator model and its inputs, quick to load in a process of its own."""
    import onnx
    from onnx import TensorProto, helper

    directory = tmp_path_factory.mktemp("small")
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "x"], ["p"]),
            helper.make_node("Relu", ["p"], ["y"]),
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [16, 16])],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.save(model, directory / "small.onnx")
    x = np.random.default_rng(0).standard_normal((16, 16), dtype=np.float32)
    np.savez(directory / "small.npz", **{"in.x": x})
    return directory / "small.onnx", directory / "small.npz"
