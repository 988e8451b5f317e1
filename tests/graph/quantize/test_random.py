"""Random networks: in QDQ form they are well-formed, close to their floats, and ONNX's."""

import numpy as np
import onnx
import pytest

from tests.graph.quantize.models import (
    RUNNER,
    by_onnxruntime,
    drawn,
    graph_of,
    made,
    samples_for,
)
from tilewright.frontends.onnx.export import to_onnx
from tilewright.graph.quantize.metrics import cosine
from tilewright.graph.verify import verify

CHANNELS = 4
# Each takes one or two tensors [1, 4, 6, 6] to another.
ONE = (
    "Relu({0})",
    "LeakyRelu({0})",
    "Clip({0}, low, high)",
    "Sigmoid({0})",
    "MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>({0})",
    "AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>({0})",
    "Transpose<perm = [0, 1, 3, 2]>({0})",
    "Mul({0}, factor)",
)
TWO = ("Add({0}, {1})", "Sum({0}, {1})", "Mul({0}, {1})")


def random_network(seed):
    """A graph of a dozen operations, some tensors read several times, one to three outputs."""
    rng = np.random.default_rng(seed)
    arrays = {
        "low": np.float32(-1),
        "high": np.float32(2),
        "factor": drawn(seed, CHANNELS, 1, 1),
    }
    lines, tensors = [], ["x"]

    def put(text):
        name = f"t{len(lines)}"
        lines.append(f"{name} = {text}")
        tensors.append(name)

    for n in range(12):
        a, b = rng.choice(tensors[-4:], 2)
        kind = rng.integers(6)
        if kind < 2:
            w, bias = f"w{n}", f"b{n}"
            arrays[w] = drawn(100 + n, CHANNELS, CHANNELS, 3, 3, scale=0.2)
            arrays[bias] = drawn(200 + n, CHANNELS, scale=0.1)
            put(f"Conv<pads = [1, 1, 1, 1]>({a}, {w}, {bias})")
        elif kind == 2:
            w = f"w{n}"
            arrays[w] = drawn(100 + n, CHANNELS, 2 * CHANNELS, 1, 1, scale=0.3)
            put(f"Concat<axis = 1>({a}, {b})")
            joined = tensors.pop()
            put(f"Conv({joined}, {w})")
        elif kind == 3:
            put(str(rng.choice(TWO)).format(a, b))
        else:
            put(str(rng.choice(ONE)).format(a))
    outputs = list(dict.fromkeys([tensors[-1], *rng.choice(tensors[1:], 2)]))
    shape = "float[1, 4, 6, 6]"
    said = ", ".join(f"{shape} {name}" for name in outputs)
    text = "  ".join(lines)
    used = {k: a for k, a in arrays.items() if f", {k})" in text or f", {k}," in text}
    return graph_of(text, f"{shape} x) => ({said}", **used)


RECIPES = (
    {},
    {"activations": "int8", "method": "mse"},
    {"equalize": True, "correct_bias": True},
    {"smooth": 0.5, "rounding": "gptq"},
)


@pytest.mark.sampled(6)  # each seed draws of all operators
@pytest.mark.parametrize("seed", range(24))
def test_random_networks(seed):
    graph = random_network(seed)
    samples = samples_for(graph, 4)
    model = made(graph, samples, **RECIPES[seed % len(RECIPES)])
    verify(model.graph)
    keep = [layer.name for layer in model.layers[::3]]
    for found in (model.quantized(), model.quantized(keep)):
        verify(found)
        onnx.checker.check_model(to_onnx(found), full_check=True)
        real = RUNNER(graph)(samples[0])
        ours = RUNNER(found)(samples[0])
        theirs = by_onnxruntime(found, samples[0])
        for value, want in zip(graph.outputs, theirs, strict=True):
            assert cosine(ours[value.name], real[value.name]) > 0.98
            assert cosine(ours[value.name], want) > 0.999
