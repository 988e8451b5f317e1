"""Functions of the C library that a library brings: as NumPy's, for every kind of number."""

from __future__ import annotations

import ctypes
import platform

import numpy as np
import pytest

from tilewright.runtime.loader import link
from tilewright.targets.cpu.whole_numbers import FUNCTIONS, functions_text
from tilewright.targets.llvm import backend

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="runs code for x86-64"
)
_NUMPY = {"floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "roundeven": np.rint}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_numpy(name: str) -> None:
    target = backend.target_machine("x86_64-unknown-linux-gnu", "", "", 2)
    module = backend.module_of(functions_text([name, name]), target, name)
    image = link([bytes(target.emit_object(module))])
    operation, type, _, bits = FUNCTIONS[name]
    c, dtype = {
        "float": (ctypes.c_float, np.float32),
        "double": (ctypes.c_double, np.float64),
    }[type]
    function = ctypes.CFUNCTYPE(c, c)(image.address(name))
    edge = 2.0**bits
    some = [0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 3.5, 1e-40, edge / 2 - 0.5, edge - 0.5]
    some += [edge, edge + 1, 1e30, np.inf, np.nan, 4194304.5, 8388607.5]
    given = np.array([*some, *(-v for v in some)], dtype)
    found = np.array([function(v) for v in given], dtype)
    expected = _NUMPY[operation](given)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))
