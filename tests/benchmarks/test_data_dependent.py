"""Models whose shapes or steps depend on data: one call, with the results of ONNX Runtime."""

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
from benchmarks.data_dependent import CASES, agree, times


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_results_agree_and_nothing_runs_on_the_host(name):
    """`times` compares the results, and compiles so that a fallback is an error."""
    found, shapes = times(CASES[name](np.random.default_rng(1)), threads=1, rounds=1)
    assert list(found) == ["Tilewright", "ONNX Runtime"]
    assert all(shape[0] > 1 for shape in shapes)  # something was found, or decoded


def test_other_results_are_not_accepted():
    one = [np.ones(3, np.float32)]
    agree(one, one)
    for other in (
        [np.full(3, 1.01, np.float32)],
        [np.ones(2, np.float32)],
        [*one, *one],
    ):
        with pytest.raises((AssertionError, ValueError)):
            agree(one, other)
