"""Checks that a model has the same results with other schedules."""

from __future__ import annotations

import warnings
from typing import Any, Final

import numpy as np

from tilewright.base.errors import TilewrightWarning, VerifyError
from tilewright.runtime.executable import Executable

Array = np.ndarray[Any, Any]
# Relative to the largest value of an output: both are sums of the same terms in other orders.
TOLERANCE: Final = {"float64": 1e-9, "float32": 1e-3, "float16": 3e-2, "bfloat16": 0.1}


def expect_equal(plain: Executable, tuned: Executable, feeds: dict[str, Array]) -> None:
    """Raise VerifyError if an output differs by more than rounding, or in NaN and infinities.

    An output that varies between runs of the same model is not compared, with a warning.
    """
    runs = [_results(exe, feeds) for exe in (plain, plain, tuned)]
    names = [t.name for t in plain.outputs]
    for name, a, again, b in zip(names, *runs, strict=True):
        if _is_same(a, again):
            _expect_near(name, a, b)
        else:
            warnings.warn(
                f"output {name!r} varies between runs, so it was not compared",
                TilewrightWarning,
                stacklevel=2,
            )


def _is_same(a: Array, b: Array) -> bool:
    """Whether all bits are equal, also those of NaN."""
    if a.dtype == object:
        return np.array_equal(a, b)
    return np.array_equal(a.view(np.uint8), b.view(np.uint8))


def _results(exe: Executable, feeds: dict[str, Array]) -> list[Array]:
    """Contiguous copies of the outputs."""
    return [np.array(a, order="C", ndmin=1) for a in exe.run(feeds)]


def _expect_near(name: str, a: Array, b: Array) -> None:
    off = 0.0
    if a.dtype.kind in "iub" or a.dtype == object:
        same = bool((a == b).all())
    else:
        wide = np.complex128 if a.dtype.kind == "c" else np.float64
        x = a.astype(wide)
        y = b.astype(wide)
        finite = np.isfinite(x)
        largest = float(np.abs(x[finite]).max(initial=0.0))
        with np.errstate(invalid="ignore"):
            off = float(np.abs(x[finite] - y[finite]).max(initial=0.0))
        near = off <= TOLERANCE.get(a.dtype.name, 0.1) * max(largest, 1e-30)
        odd = (x[~finite] == y[~finite]) | (np.isnan(x[~finite]) & np.isnan(y[~finite]))
        same = near and bool(odd.all())
    if not same:
        raise VerifyError(
            f"the tuned schedules change it by up to {off:g}",
            where=f"output {name!r}",
            hint="no schedule was chosen; report it with the model and its records",
        )
