"""Halide's tutorial, in ours and in the `halide` package: equal results."""

from __future__ import annotations

import numpy as np
import pytest

from tests.lang.halide.tutorial import LESSONS, PROGRAMS
from tilewright import halide as hl

theirs = pytest.importorskip("halide")


@pytest.mark.sampled(9)
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    found, wanted = (PROGRAMS[name](m) for m in (hl, theirs))
    found, wanted = (
        v if isinstance(v, tuple | list) else (v,) for v in (found, wanted)
    )
    for ours, want in zip(found, wanted, strict=True):
        got, expected = np.asarray(ours), np.asarray(want)
        assert got.dtype == expected.dtype
        rtol = 1e-5 if got.dtype.kind == "f" else 0
        np.testing.assert_allclose(got, expected, rtol=rtol, atol=rtol)


def test_every_lesson_is_there():
    assert tuple(dict.fromkeys(int(name.split("_")[1]) for name in PROGRAMS)) == LESSONS
