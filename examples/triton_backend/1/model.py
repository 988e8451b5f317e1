"""A model of Triton's Python backend that runs an artifact: `tilewright compile MODEL -o model.tw`.

Put this file and `model.tw` in `MODELS/NAME/1`, and `config.pbtxt` with the names, types and shapes
of your model in `MODELS/NAME`.
"""

import json
from pathlib import Path

import triton_python_backend_utils as pb_utils

import tilewright as tw


class TritonPythonModel:
    """What Triton makes of each instance of the model."""

    def initialize(self, args):
        """Load the artifact, which the parameter `artifact` names."""
        folder = Path(args["model_repository"]) / args["model_version"]
        config = json.loads(args["model_config"])
        self.executable = tw.load(
            folder / config["parameters"]["artifact"]["string_value"]
        )

    def execute(self, requests):
        """One response per request; one that fails does not stop the others."""
        return [self._response(request) for request in requests]

    def _response(self, request):
        try:
            given = [
                pb_utils.get_input_tensor_by_name(request, t.name).as_numpy()
                for t in self.executable.inputs
            ]
            found = self.executable(*given)
        except Exception as error:
            failed = pb_utils.TritonError(str(error))
            return pb_utils.InferenceResponse(output_tensors=[], error=failed)
        many = found if isinstance(found, tuple) else (found,)
        pairs = zip(self.executable.outputs, many, strict=True)
        tensors = [pb_utils.Tensor(t.name, y) for t, y in pairs]
        return pb_utils.InferenceResponse(output_tensors=tensors)
