"""Compile an ONNX model, run it, see where the time goes, save it and load it.

python examples/compile_onnx.py [model.onnx]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx.parser

import tilewright as tw

# Any model: a path, bytes or an onnx.ModelProto. Without one, a small network written out as text.
NETWORK = """
<ir_version: 10, opset_import: ["" : 21]>
network (float[1, 3, 64, 64] image, float[16, 3, 3, 3] filters, float[16, 8] classes)
  => (float[1, 8] scores) {
  features = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (image, filters)
  active = Relu (features)
  pooled = GlobalAveragePool (active)
  flat = Flatten (pooled)
  logits = MatMul (flat, classes)
  scores = Softmax <axis = -1> (logits)
}
"""


def main() -> None:
    source = sys.argv[1] if len(sys.argv) > 1 else onnx.parser.parse_model(NETWORK)
    exe = tw.compile(source)
    print(exe)

    rng = np.random.default_rng(0)
    inputs = {t.name: rng.standard_normal(t.shape).astype(t.dtype) for t in exe.inputs}
    result = exe(
        inputs
    )  # in order or by name works too: exe(image, ...), exe(image=...)
    first = result if isinstance(result, np.ndarray) else result[0]
    print("result:", first.shape, first.dtype)
    print(exe.profile(inputs))

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.tw"
        exe.save(path)
        again = tw.load(path)(inputs)  # needs no compiler
        first_again = again if isinstance(again, np.ndarray) else again[0]
        print(
            f"saved in {path.stat().st_size / 1024:.0f} KiB, loaded:",
            (first_again == first).all(),
        )


if __name__ == "__main__":
    main()
