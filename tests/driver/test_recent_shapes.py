"""Calls of a range with the shapes of recent calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.driver.ranges.test_ranged import model
from tilewright.base.errors import InputError
from tilewright.runtime.ranged import RangedExecutable

RNG = np.random.default_rng(0)


def test_shapes_of_a_recent_call_are_not_looked_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By position and by name, in any order; other shapes, names and types are as before."""
    text = "(float[n, 3] x, float[n, 3] z) => (float[n, 3] y) { y = Sub(x, z) }"
    exe: Any = tw.compile(
        model(text), dims={"n": (1, 400)}, jit=False, threads=1, cache=False
    )
    x, z = (RNG.standard_normal((5, 3)).astype(np.float32) for _ in range(2))
    for _ in range(2):
        np.testing.assert_array_equal(exe(x, z), x - z)
    with monkeypatch.context() as m:
        m.delattr(RangedExecutable, "at")
        np.testing.assert_array_equal(exe(x, z), x - z)
        np.testing.assert_array_equal(exe(z=z, x=x), x - z)
        out = np.empty_like(x)
        assert exe(x, z, out=out) is out
        np.testing.assert_array_equal(out, x - z)
        with pytest.raises(InputError, match="z"):
            exe(x, z.astype(np.float64))
        with pytest.raises(AttributeError):
            exe(x[:4], z[:4])
    np.testing.assert_array_equal(exe({"x": x, "z": z}), x - z)
    np.testing.assert_array_equal(exe(x[:4], z[:4]), (x - z)[:4])
    with pytest.raises(InputError, match="n is 5 in input 'x'"):
        exe(x, z[:4])
    with pytest.raises(InputError, match="no input is called 'w'"):
        exe(x=x, w=z)
    with pytest.raises(InputError, match="missing"):
        exe(x)
    for n in range(1, 100):
        exe(np.ones((n, 3), np.float32), np.ones((n, 3), np.float32))
    assert len(exe._recent) <= 64
    exe.release()
    assert not exe._recent
    np.testing.assert_array_equal(exe(x, z), x - z)
