"""The example of Triton's Python backend, with a stand-in for Triton's module."""

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace

import numpy as np

import tilewright as tw
from tests.graph.one_operator import model_of

EXAMPLE = Path(__file__).parents[2] / "examples/triton_backend"


class Tensor:
    def __init__(self, name, array):
        self.name, self.array = name, array

    def as_numpy(self):
        return self.array


def stand_in():
    """The names of triton_python_backend_utils that the example calls."""

    def response(output_tensors, error=None):
        return SimpleNamespace(outputs=output_tensors, error=error)

    return SimpleNamespace(
        Tensor=Tensor,
        TritonError=lambda message: message,
        InferenceResponse=response,
        get_input_tensor_by_name=lambda request, name: request[name],
    )


def test_requests_are_answered_and_a_wrong_one_alone_fails(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", stand_in())
    x = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
    (tmp_path / "1").mkdir()
    tw.compile(model_of("Abs", [x]), threads=1).save(tmp_path / "1/model.tw")
    spec = spec_from_file_location("triton_example", EXAMPLE / "1/model.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    parameters = {"artifact": {"string_value": "model.tw"}}
    assert 'key: "artifact"' in (EXAMPLE / "config.pbtxt").read_text()
    model = module.TritonPythonModel()
    model.initialize(
        {
            "model_repository": str(tmp_path),
            "model_version": "1",
            "model_config": json.dumps({"parameters": parameters}),
        }
    )
    wrong, right = {"x0": Tensor("x0", x[:1])}, {"x0": Tensor("x0", x)}
    failed, answered = model.execute([wrong, right])
    assert failed.outputs == [] and "x0" in failed.error
    assert [t.name for t in answered.outputs] == ["y0"] and answered.error is None
    assert np.array_equal(answered.outputs[0].as_numpy(), np.abs(x))
