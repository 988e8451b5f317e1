"""call_pure_extern: C's functions of numbers by name."""

from __future__ import annotations

import ctypes
import ctypes.util

import numpy as np
import pytest

from tilewright import te as t
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.lang.te.pure import _MATH

LIBRARY = ctypes.CDLL(ctypes.util.find_library("m"))
TWO = ("atan2", "copysign", "pow")
x = np.array([0.25, 0.5, 0.75], np.float64)


def arguments(name: str, value: object) -> list[object]:
    count = 3 if name == "fma" else 2 if name in TWO else 1
    return [value + 1 if name == "acosh" else value, 0.5, 1.5][:count]  # type: ignore[operator]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_as_the_library_has_it(dtype: str) -> None:
    X = t.placeholder((3,), dtype, name="X")
    suffix = "f" if dtype == "float32" else ""
    names = sorted(_MATH)
    results = [
        t.compute(
            (3,),
            lambda i, n=name: t.call_pure_extern(
                dtype, n + suffix, *arguments(n, X[i])
            ),
            name=f"Y_{name}",
        )
        for name in names
    ]
    found = [np.empty(3, dtype) for _ in names]
    s = t.create_schedule([y.op for y in results])
    t.build(s, [X, *results])(x.astype(dtype), *found)
    for name, values in zip(names, found, strict=True):
        function = getattr(LIBRARY, name)
        function.restype = ctypes.c_double
        function.argtypes = [ctypes.c_double] * len(arguments(name, 0.0))
        want = [function(*arguments(name, float(v))) for v in x]
        limit = 1e-6 if dtype == "float32" else 1e-14
        np.testing.assert_allclose(values, want, rtol=limit, err_msg=name)


def test_what_is_no_such_function() -> None:
    X = t.placeholder((3,), name="X")
    for dtype, name in (("float32", "mine"), ("float32", "exp"), ("float64", "expf")):
        with pytest.raises(UnsupportedError, match=rf"C's {name} .*compile_c"):
            t.compute((3,), lambda i: t.call_pure_extern(dtype, name, X[i]))
    with pytest.raises(InputError, match=r"powf\(float32\); it takes 2 of float32"):
        t.compute((3,), lambda i: t.call_pure_extern("float32", "powf", X[i]))
    with pytest.raises(InputError, match=r"exp\(float32\); it takes 1 of float64"):
        t.compute((3,), lambda i: t.call_pure_extern("float64", "exp", X[i]))
