"""An operator of your own: defined once, then fused, compiled, checked and profiled like any other.

python examples/custom_operator.py
"""

import numpy as np
import onnx.parser

import tilewright as tw
from tilewright.operators import OpDef, exp, map_, register

# y = x / (1 + exp(-beta * x)), the type of y is the type of x.
register(
    OpDef(
        "Swish",
        domain="com.acme",
        infer=lambda call: [(call.dtype(0), call.shape(0))],
        compute=lambda call, inputs, outputs: [
            map_(
                "swish",
                outputs[0],
                lambda *i: (
                    inputs[0][i] / (1.0 + exp(inputs[0][i] * -call.attr("beta", 1.0)))
                ),
            )
        ],
        reference=lambda call, x: [x / (1 + np.exp(-call.attr("beta", 1.0) * x))],
        flops=lambda call: 4 * call.size_out(0),
    )
)

MODEL = """
<ir_version: 10, opset_import: ["" : 21, "com.acme" : 1]>
network (float[64, 256] x, float[256, 128] w) => (float[64, 128] y) {
  t = MatMul (x, w)
  y = com.acme.Swish <beta: float = 1.5> (t)
}
"""


def main() -> None:
    exe = tw.compile(
        onnx.parser.parse_model(MODEL), fallback="error"
    )  # native code or an error
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 256), dtype=np.float32)
    w = rng.standard_normal((256, 128), dtype=np.float32) / 16
    t = x @ w
    np.testing.assert_allclose(
        exe(x, w), t / (1 + np.exp(-1.5 * t)), rtol=1e-4, atol=1e-5
    )
    print("agrees with its reference; fused into the product:")
    print(exe.profile(x, w))


if __name__ == "__main__":
    main()
