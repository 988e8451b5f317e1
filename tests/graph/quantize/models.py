"""Small models, data for them, and what runs them."""

import numpy as np
import onnx.parser
from onnx import numpy_helper

from tilewright.frontends.onnx import load
from tilewright.frontends.onnx.export import to_onnx
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph.interp import evaluate
from tilewright.graph.quantize import QuantizationRecipe
from tilewright.graph.quantize.calibrate import interpreter
from tilewright.graph.quantize.model import calibrated

FALLBACK = OnnxFallback()
RUNNER = interpreter(FALLBACK)


def drawn(seed, *shape, scale=1.0):
    rng = np.random.default_rng(seed)
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def model_of(nodes, signature, opset=17, **constants):
    """A ModelProto `f (signature) { nodes }` with constants by name."""
    text = (
        f'<ir_version: 8, opset_import: ["" : {opset}]> f ({signature}) {{ {nodes} }}'
    )
    model = onnx.parser.parse_model(text)
    arrays = (numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items())
    model.graph.initializer.extend(arrays)
    return model


def graph_of(nodes, signature, opset=17, **constants):
    return load(model_of(nodes, signature, opset, **constants))


def block():
    """Convolutions with a shortcut, pooling, two branches joined, an average, a product."""
    nodes = """
        a = Conv<pads = [1, 1, 1, 1]>(x, w0, b0)   ar = Relu(a)
        p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(ar)
        c = Conv<pads = [1, 1, 1, 1]>(p, w1, b1)   cr = Relu(c)
        d = Conv(cr, w2, b2)   s = Add(d, p)   sr = Relu(s)
        e = Conv(sr, w3)   er = Relu(e)   f = Conv(sr, w4, b4)   fr = Relu(f)
        j = Concat<axis = 1>(er, fr)   g = Conv(j, w5, b5)   gr = Relu(g)
        m = GlobalAveragePool(gr)   l = Flatten(m)   y = Gemm<transB = 1>(l, w6, b6)
    """  # fmt: skip
    shapes = {"w0": (8, 3, 3, 3), "w1": (8, 8, 3, 3), "w2": (8, 8, 1, 1), "w3": (4, 8, 1, 1),
              "w4": (4, 8, 1, 1), "w5": (12, 8, 1, 1), "w6": (5, 12)}  # fmt: skip
    constants = {
        name: drawn(n, *s, scale=(2 / np.prod(s[1:])) ** 0.5)
        for n, (name, s) in enumerate(shapes.items())
    }
    for n in (0, 1, 2, 4, 5, 6):
        constants[f"b{n}"] = drawn(20 + n, len(constants[f"w{n}"]), scale=0.1)
    return model_of(nodes, "float[2, 3, 12, 12] x) => (float[2, 5] y", **constants)


def perceptron(seed=0, inner="Relu", width=16):
    """Two products with an activation between; biases as sums."""
    nodes = (
        f"h = MatMul(x, w0)  a = Add(h, b0)  r = {inner}(a)  z = MatMul(r, w1)"
        "  y = Add(z, b1)"
    )
    return graph_of(
        nodes, f"float[6, {width}] x) => (float[6, 4] y",
        w0=drawn(seed, width, 24, scale=0.3), b0=drawn(seed + 1, 24),
        w1=drawn(seed + 2, 24, 4, scale=0.3), b1=drawn(seed + 3, 4),
    )  # fmt: skip


def samples_for(graph, count=8, **scales):
    """Normal data for each input; scales: by input, a number or what broadcasts."""
    return [
        {
            v.name: drawn(100 * n + m, *v.extents)
            * np.asarray(scales.get(v.name, 1.0), np.float32)
            for m, v in enumerate(graph.inputs)
        }
        for n in range(count)
    ]


def made(graph, samples, **recipe):
    """The graph quantized by a recipe, interpreted, no sample held out."""
    return calibrated(graph, samples, QuantizationRecipe(**recipe), RUNNER, FALLBACK)


def errors(graph, other, samples):
    """The mean squared difference of the first outputs."""
    name = graph.outputs[0].name
    return float(
        np.mean(
            [
                (
                    evaluate(graph, s, fallback=FALLBACK)[name]
                    - evaluate(other, s, fallback=FALLBACK)[name]
                )
                ** 2
                for s in samples
            ]
        )
    )


def by_onnxruntime(graph, sample):
    """The outputs of ONNX Runtime, as the model says, without its own rewrites."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = to_onnx(graph).SerializeToString()
    session = ort.InferenceSession(data, options, ["CPUExecutionProvider"])
    return session.run(None, dict(sample))
