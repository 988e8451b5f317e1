"""require, specialize_fail and strict_float, beside the `halide` package."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright import halide as hl
from tilewright.base.errors import ExecutionError, ScheduleError

theirs = pytest.importorskip("halide")


def required(m: Any, *text: str) -> Any:
    f, x = m.Func("f"), m.Var("x")
    f[x] = m.require(x < 5, x * 3, *text, x)
    return f.compute_root()


def test_what_holds_is_the_value() -> None:
    found = [np.asarray(required(m).realize([5])) for m in (hl, theirs)]
    np.testing.assert_array_equal(*found)


def test_what_does_not_hold_is_an_error() -> None:
    with pytest.raises(ExecutionError, match="x is 5"):
        required(hl, "x is").realize([6])
    with pytest.raises(theirs.HalideError, match="5"):
        required(theirs).realize([6])
    f = required(hl, "x is").compile_jit([6])
    with pytest.raises(ExecutionError, match="x is 5"):
        f(np.zeros(6, np.int32))


def test_a_requirement_without_a_text() -> None:
    f, x = hl.Func("f"), hl.Var("x")
    f[x] = hl.require(x < 0, hl.f32(x))
    with pytest.raises(ExecutionError, match="a requirement does not hold"):
        f.realize([1])


def product(m: Any, strict: bool, deep: bool = False) -> Any:
    image, x = m.ImageParam(m.Float(32), 1), m.Var("x")
    # 1 + 2**-12 squared is 1 + 2**-11 + 2**-24, which float32 rounds to 1 + 2**-11
    image.set(m.Buffer(np.full(16, 1 + 2**-12, np.float32)))
    f, g = m.Func("f"), m.Func("g")
    difference = image[x] * image[x] - m.f32(1 + 2**-11)
    f[x] = m.strict_float(difference) if strict else difference
    g[x] = f[x] * m.f32(1.0)
    return g.vectorize(x, 16) if deep else f.vectorize(x, 16)


@pytest.mark.parametrize("deep", [False, True])
def test_products_are_rounded(deep: bool) -> None:
    for m in (hl, theirs):
        assert not np.asarray(product(m, True, deep).realize([16])).any()
    f = product(hl, True, deep).compile_jit([16])
    assert "contract" not in f.source("llvm")
    assert "strict" not in f.source()


def test_products_are_fused_without() -> None:
    f = product(hl, False).compile_jit([16])
    assert "contract" in f.source("llvm")


def special(m: Any) -> tuple[Any, Any]:
    gain = m.Param(m.Int(32), "gain", 3)
    f, x = m.Func("f"), m.Var("x")
    f[x] = x * gain
    f.specialize(gain == 3).vectorize(x, 4)
    f.specialize(gain == 5)
    f.specialize_fail("the gain is 3 or 5")
    return gain, f


@pytest.mark.parametrize("module", [hl, theirs], ids=["here", "halide"])
def test_values_that_no_specialization_is_for(module: Any) -> None:
    gain, f = special(module)
    for value in (3, 5):
        gain.set(value)
        found = np.asarray(f.realize([8]))
        np.testing.assert_array_equal(found, np.arange(8) * value)
    gain.set(4)
    error = ExecutionError if module is hl else theirs.HalideError
    with pytest.raises(error, match="the gain is 3 or 5"):
        f.realize([8])


def test_sizes_that_no_specialization_is_for() -> None:
    f, x = hl.Func("f"), hl.Var("x")
    f[x] = x + 1
    f.specialize(f.output_buffer().width() > 4)
    f.specialize_fail("too narrow")
    np.testing.assert_array_equal(np.asarray(f.realize([5])), np.arange(5) + 1)
    with pytest.raises(ExecutionError, match="too narrow"):
        f.realize([4])


def test_a_failure_needs_a_specialization() -> None:
    f, x = hl.Func("f"), hl.Var("x")
    f[x] = x + 1
    with pytest.raises(ScheduleError, match=r"after specialize\(condition\)"):
        f.specialize_fail("never")
