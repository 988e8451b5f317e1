"""A built kernel as a function: calling, refusing, showing."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.base.dtypes import float32
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.lang.function import Function
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.operators import Buffer, map_


def _kernel() -> Kernel:
    x, y, z = (Buffer(name, (4, 6), float32) for name in "xyz")
    double = map_("double", y, lambda i, j: x[i, j] + x[i, j])
    square = map_("square", z, lambda i, j: x[i, j] * x[i, j])
    return lower("both", [double, square], [x, y, z], [y, z])


@pytest.mark.parametrize("target", ["cpu", "interp"])
def test_writes_into_the_callers_arrays(target: str) -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    y, z = np.zeros_like(x), np.zeros_like(x)
    assert Function(_kernel(), target)(x, y, z) is None
    np.testing.assert_array_equal(y, x + x)
    np.testing.assert_array_equal(z, x * x)


def test_overlapping_and_strided_arrays() -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    wanted, wide = x * x, np.zeros((4, 12), np.float32)
    Function(_kernel())(x, wide[:, ::2], x)
    np.testing.assert_array_equal(x, wanted)
    np.testing.assert_array_equal(wide[:, ::2] ** 2, 4 * wanted)


_GOOD = np.zeros((4, 6), np.float32)


@pytest.mark.parametrize("target", ["cpu", "interp"])
@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((_GOOD, _GOOD), "2 arrays given, 3 expected: x: float32"),
        ((_GOOD, _GOOD, np.zeros((4, 5), np.float32)), r"z.*float32\[4, 6\].*float32\[4, 5\]"),
        ((_GOOD, _GOOD, np.zeros((4, 6))), r"z.*float32\[4, 6\].*float64\[4, 6\]"),
        ((_GOOD.astype(np.int32), _GOOD, _GOOD), "x.*int32"),
        ((_GOOD, _GOOD, [0.0]), "z.*(list|NumPy)"),
    ],
    ids=["count", "shape", "dtype", "input", "list"],
)
def test_refuses(target: str, arrays: tuple[object, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Function(_kernel(), target)(*arrays)


def test_source() -> None:
    f = Function(_kernel())
    assert f.source().startswith("kernel both(x: float32[4, 6])")
    assert "define void @both" in f.source("llvm")
    assert "vaddps" in f.source("asm") or "addss" in f.source("asm")
    with pytest.raises(InputError, match="no 'ptx' text"):
        f.source("ptx")


def test_unknown_target() -> None:
    with pytest.raises(UnsupportedError, match="unknown target 'abacus'"):
        Function(_kernel(), "abacus")
