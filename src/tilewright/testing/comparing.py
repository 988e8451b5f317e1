"""Comparing results the way ONNX's own test runner does: shapes, dtypes, then values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def compare(
    outputs: Sequence[Any],
    expected: Sequence[Any],
    rtol: float = 1e-3,
    atol: float = 1e-7,
) -> None:
    """Raise AssertionError if an output differs from the expected one, naming the output and the
    difference.

    An output is an array, None, or a list of outputs (a sequence).
    """
    assert len(outputs) == len(expected), (
        f"{len(outputs)} outputs, expected {len(expected)}"
    )
    for n, (got, want) in enumerate(zip(outputs, expected, strict=True)):
        if isinstance(want, list | tuple):
            assert isinstance(got, list | tuple), (
                f"output {n} is not a sequence: {type(got)}"
            )
            compare(got, want, rtol, atol)
        elif want is None or got is None:
            assert want is got, f"output {n} is {got!r}, expected {want!r}"
        else:
            _compare_arrays(np.asarray(got), np.asarray(want), n, rtol, atol)


def _compare_arrays(
    got: Any,
    want: Any,
    n: int,
    rtol: float,
    atol: float,
) -> None:
    assert got.shape == want.shape, (
        f"output {n} has shape {got.shape}, expected {want.shape}"
    )
    if want.dtype == object or want.dtype.kind in "US":
        np.testing.assert_array_equal(got.astype(str), want.astype(str), f"output {n}")
        return
    assert got.dtype == want.dtype, f"output {n} is {got.dtype}, expected {want.dtype}"
    if want.dtype.name == "bfloat16":
        rtol = max(rtol, 2**-6)  # two units in the last place, as ONNX's runner has it
    if type(want.dtype.type(0)).__module__ == "ml_dtypes":
        got = got.astype(np.float32)
        want = want.astype(np.float32)
    np.testing.assert_allclose(got, want, rtol, atol, err_msg=f"output {n}")
