"""Ranges whose joined axes have sums of sizes, and sums over axes of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.driver.ranges.test_ranged import RNG, fed, model

TOKENS = (
    "i = Constant<value_ints = [0, 0, -1]>() z = Reshape({}, i)"
    " y = Transpose<perm = [0, 2, 1]>(z)"
)
HALF = (
    "a = Constant<value_ints = [3]>() e = Constant<value_ints = [99]>()"
    " two = Constant<value_ints = [2]>() c = Shape<start = 3>(x) m = Div(c, two)"
    " r = Slice(x, m, e, a) "
)
DIGITS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "a sum": (
        TOKENS.format("x"),
        {"h": (5, 9), "w": (4, 20, 4)},
        lambda x: x.reshape(2, 3, -1).transpose(0, 2, 1),
    ),
    "a difference": (
        HALF + TOKENS.format("r"),
        {"h": 5, "w": (6, 40)},
        lambda x: x[..., x.shape[3] // 2 :].reshape(2, 3, -1).transpose(0, 2, 1),
    ),
    "two extents": (
        TOKENS.format("x"),
        {"h": (2, 3), "w": (4, 12)},
        lambda x: x.reshape(2, 3, -1).transpose(0, 2, 1),
    ),
}


@pytest.mark.parametrize("name", DIGITS)
def test_digits_by_sums_of_sizes_share_code(name: str) -> None:
    """Indices of joined axes: by a number with its step, by a rest of an axis, and of a product,
    which two extents hardly distinguish from a sum."""
    body, dims, want = DIGITS[name]
    source = model("(float[2, 3, h, w] x) => (float[s, t, u] y) { " + body + " }")
    source.graph.output[0].type.tensor_type.ClearField("shape")
    exe: Any = tw.compile(source, dims=dims, jit=False, threads=1, cache=False)
    assert len(exe.model.shared) == 1 and not exe.model.single
    h, w = (
        range(e[0], e[1] + 1, *e[2:]) if isinstance(e, tuple) else [e]
        for e in dims.values()
    )
    for n, m in ((h[0], w[0]), (h[-1], w[-1]), (h[0], w[-1]), (h[-1], w[1])):
        x = RNG.standard_normal((2, 3, n, m)).astype(np.float32)
        np.testing.assert_array_equal(exe(x), want(x))


def test_sums_over_many_sizes_are_not_split() -> None:
    source = model(
        "(float[1, 3, n, 32] x) => (float[1, 3, 32, n] y) {"
        " a = Constant<value_floats = [1.0, 2.0, 3.0]>()"
        " t = Transpose<perm = [0, 1, 3, 2]>(x) y = InstanceNormalization(t, a, a) }"
    )
    how: Any = {"jit": False, "threads": 1, "cache": False}
    exe: Any = tw.compile(source, dims={"n": (17, 39)}, **how)
    assert [len(s.covers) for s in exe.model.shared] == [23]
    for n in (17, 32, 39):
        x = fed(source, n)
        t = x.transpose(0, 1, 3, 2)
        deviation = np.sqrt(t.var((2, 3), keepdims=True) + 1e-5)
        wanted = (t - t.mean((2, 3), keepdims=True)) / deviation
        wanted = np.reshape([1, 2, 3], (3, 1, 1)) * (wanted + 1)
        np.testing.assert_allclose(exe(x), wanted, rtol=1e-3, atol=1e-4)
