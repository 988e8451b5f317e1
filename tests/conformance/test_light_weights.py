"""ONNX's light models with random weights, against float64.

In the original models all weights are equal, so a kernel that reads a wrong channel, or skips
one, has the same result.
"""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from benchmarks import light_nets
from tilewright.frontends.load import load
from tilewright.testing.networks.judge import NetworkJudge

# The model, and the factor that brings its logits near 1.
GAINS = {
    "bvlc_alexnet": 1 / 5, "densenet121": 1 / 13, "inception_v1": 8, "inception_v2": 1 / 64,
    "resnet50": 1 / 84, "shufflenet": 1 / 27, "squeezenet": 1 / 3.5, "vgg19": 1 / 6.5,
    "zfnet512": 1 / 5,
}  # fmt: skip
QUICK = ("shufflenet",)
MODELS = [
    pytest.param(name, id=name, marks=() if name in QUICK else pytest.mark.slow)
    for name in GAINS
]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_light_model_with_real_weights_gives_what_it_gives_in_float64(
    name: str,
) -> None:
    graph = load(light_nets.build(name, name, GAINS[name]))
    (given,) = graph.inputs
    image = np.random.default_rng(0).standard_normal(given.extents).astype(np.float32)
    judge = NetworkJudge(graph, {given.name: image})
    (expected,) = judge.expected.values()
    sizes = np.abs(expected)
    assert expected.std() > 0.1 * sizes.mean(), "all results are alike: it says nothing"
    assert sizes.max() < 0.5 * sizes.sum(), "one result is all: it says nothing"
    assert not judge.wrong(tw.compile(graph, threads=2, cache=False)(image))
