"""Comparing two kernels by running both on the same random inputs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from tilewright.base.dtypes import DType
from tilewright.base.errors import VerifyError
from tilewright.expr.nodes import Buffer
from tilewright.loops.interp import run
from tilewright.loops.nodes import Kernel
from tilewright.loops.verify import verify

# Roundings of one reassociated sum differ by about this many units in the last place.
TOLERANCE_ULP = 256


def check_equal(before: Kernel, after: Kernel, seed: int = 0) -> None:
    """Verify `after` and compare it with `before` on seeded random inputs.

    Integers agree exactly, floats to `TOLERANCE_ULP` units of the larger magnitude in the output.
    Raises VerifyError (TW-DIFFERENT) that names the output, the element and the values.
    """
    verify(after)
    rng = np.random.default_rng(seed)
    inputs = [_random(b, rng) for b in before.params]
    expected = _outputs(before, inputs)
    found = _outputs(after, inputs)
    for buffer, want, got in zip(before.outputs, expected, found, strict=True):
        place = _difference(buffer.dtype, want, got)
        if place is not None:
            raise VerifyError(
                f"{buffer.name}{list(place)} is {got[place]}, but {want[place]} before",
                code="TW-DIFFERENT",
                where=f"kernel {after.name}",
                hint="this is a defect of a primitive: report the kernel and its trace",
            )


def _random(b: Buffer, rng: np.random.Generator) -> Any:
    if b.dtype.is_float:
        return rng.standard_normal(b.shape).astype(b.dtype.numpy)
    if b.dtype.is_bool:
        return rng.integers(0, 2, b.shape).astype(bool)
    return rng.integers(0, 8, b.shape).astype(b.dtype.numpy)


def _outputs(kernel: Kernel, inputs: list[Any]) -> list[Any]:
    arrays = {b: x.copy() for b, x in zip(kernel.params, inputs, strict=True)}
    run(kernel, arrays)
    return [arrays[b] for b in kernel.outputs]


def _difference(dtype: DType, want: Any, got: Any) -> tuple[int, ...] | None:
    """The index of the first element that differs."""
    if dtype.is_float:
        ulp = float(ml_dtypes.finfo(dtype.numpy).eps)
        same = _nearly(want.astype(np.float64), got.astype(np.float64), ulp)
    else:
        same = np.asarray(want == got)
    bad = np.argwhere(~same)
    if len(bad):
        return tuple(int(i) for i in bad[0])
    return None


def _nearly(a: Any, b: Any, ulp: float) -> Any:
    finite = np.abs(a[np.isfinite(a)])
    scale = float(finite.max()) if finite.size else 0.0
    close = np.abs(a - b) <= TOLERANCE_ULP * ulp * scale
    both_nan = np.isnan(a) & np.isnan(b)
    return close | (a == b) | both_nan
