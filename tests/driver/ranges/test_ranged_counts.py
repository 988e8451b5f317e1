"""One executable for ranges of two or three sizes: numbers that several of them give."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tests.driver.ranges import random_counts
from tests.driver.ranges.test_ranged import HEAD
from tilewright.base.errors import UnsupportedError

HOW: Any = {"jit": False, "cache": False, "threads": 1}
BY_HAND = (
    "(float[1, 3, h, w] x) => (float[] y) { h = Shape<start = 2, end = 3>(x)"
    " w = Shape<start = 3, end = 4>(x) o = Constant<value_ints = [1]>() a = Add(h, o)"
    " n = Mul(h, w) f = Cast<to = 1>(n) e = Identity(f)"
    " i = Constant<value_ints = [2, 3]>() s = ReduceSum(x, i) y = Div(s, e) }"
)


@pytest.mark.parametrize(
    "old, new",
    [
        ("Mul(h, w)", "Mul(h, w)"),
        ("Mul(h, w)", "Mul(a, w)"),
        ("Identity(f)", "Log(f)"),
    ],
)
def test_a_mean_by_hand(old: str, new: str) -> None:
    """The divisor is a product of sizes as a float, which has no fraction, or its logarithm, which
    calls compute."""
    source = onnx.parser.parse_model(HEAD + BY_HAND.replace(old, new))
    exe: Any = tw.compile(source, dims={"h": (3, 40), "w": (5, 50)}, **HOW)
    assert [len(s.covers) for s in exe.model.shared] == [38 * 46], exe
    theirs = ReferenceEvaluator(source)
    for h, w in [(3, 5), (3, 50), (40, 5), (40, 50), (17, 31), (4, 49), (39, 6)]:
        x = np.random.default_rng(h).standard_normal((1, 3, h, w)).astype("f")
        (want,) = theirs.run(None, {"x": x})
        np.testing.assert_allclose(exe(x), want, rtol=1e-4, atol=1e-5)


def test_a_number_with_a_fraction_is_no_product() -> None:
    made = "k = Constant<value_floats = [4.0]>() e = Div(f, k)"  # 0.25 * h * w
    text = BY_HAND.replace("e = Identity(f)", made)
    source = onnx.parser.parse_model(HEAD + text)
    with pytest.raises(UnsupportedError, match=r"cannot decide|not possible"):
        tw.compile(source, dims={"h": (3, 40), "w": (5, 50)}, **HOW)


@pytest.mark.representatives("103", "105")
@pytest.mark.parametrize("seed", [100, 101, 103, 105, 109])
def test_random_networks_of_counts(seed: int) -> None:
    assert random_counts.run(seed) == "right"


@pytest.mark.slow
def test_many_random_networks_of_counts() -> None:
    """Many are refused, as they have remainders and maxima of sizes."""
    found = [random_counts.run(seed) for seed in range(100, 200)]
    assert found.count("right") > 45
