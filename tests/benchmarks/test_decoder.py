"""A decoder with a key-value cache, token by token, against NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from benchmarks.decoder import compare
from benchmarks.decoder_model import Decoder, build, reference
from tilewright.driver.planning import make_plan
from tilewright.driver.validate import validate_model
from tilewright.frontends.onnx.load import load
from tilewright.graph.pipeline import graph_pipeline
from tilewright.runtime.model import HostFallbackStep
from tilewright.targets.registry import target

SMALL = Decoder()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "d",
    [SMALL, replace(SMALL, batch=2, groups=4, layers=1), replace(SMALL, group=32)],
    ids=["one", "two", "int4"],
)
def test_tokens_one_by_one(d: Decoder) -> None:
    weights = d.weights()
    exe = tw.compile(build(d, weights), threads=1, cache=False)
    assert not any(isinstance(s, HostFallbackStep) for s in exe.model.steps)
    caches, expected = d.empty(), d.empty()
    expected = {name: a.astype(np.float64) for name, a in expected.items()}
    rng = np.random.default_rng(1)
    for place in range(12):
        ids = rng.integers(0, d.vocabulary, (d.batch, 1))
        want = reference(d, weights, ids, place, expected)
        last = np.full(d.batch, place, np.int32)
        logits, *kept = exe(ids=ids, last_key=last, **caches)
        caches = {name: a.copy() for name, a in zip(d.caches, kept, strict=True)}
        np.testing.assert_allclose(logits[:, 0], want, rtol=2e-4, atol=2e-4)
        for name, a in caches.items():
            np.testing.assert_allclose(a, expected[name], rtol=2e-4, atol=2e-4)


def kernels(d: Decoder) -> int:
    graph = load(build(d, d.weights()))
    plan = make_plan(graph_pipeline("default", None).run(graph), target("cpu"))
    return len(plan.groups)


def test_a_layer_has_no_more_kernels_than_it_had() -> None:
    """Of the cache two, of rotary positions two, of the products eight."""
    one, two = (kernels(replace(SMALL, layers=n)) for n in (1, 2))
    assert two - one <= 16


def test_the_benchmark_compares_the_logits() -> None:
    steps = {
        "one": lambda ids, last: np.ones((1, 1, 4)),
        "other": lambda ids, last: np.ones((1, 1, 4)) + (last[0] > 2),
    }
    assert set(compare(steps, SMALL, 3)) == {"one", "other"}
    with pytest.raises(AssertionError, match="Not equal"):
        compare(steps, SMALL, 4)


@pytest.mark.slow
def test_kernels_are_right_alone() -> None:
    """Scores behind the last key are masked with the least number: that has bounds, too."""
    verdicts = validate_model(build(SMALL, SMALL.weights()), cache=False, effort=10**6)
    attention = [v for v in verdicts if v.kind == "attention"]
    assert attention and all(v.compared for v in attention)
    assert all(v.ok for v in verdicts)
