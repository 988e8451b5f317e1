"""Results to compare with: what is right, what is wrong, and how they are sent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.tune.measure.programs import case, reference
from tilewright.base.dtypes import dtype_of
from tilewright.base.errors import InputError
from tilewright.tune.measure.reference import ReferenceResult, unpack


def result(whole: np.ndarray, bound: float = 0.0) -> ReferenceResult:
    nothing = np.zeros(0)
    return ReferenceResult(
        whole[:1], whole, bound, nothing.astype(np.int64), nothing, nothing
    )


def place(found: ReferenceResult, got: np.ndarray) -> int:
    off = found.wrong(got)
    assert off is not None
    return off.place


def test_what_is_sent_is_what_was_there() -> None:
    [one, two] = unpack(reference())
    for n, found in enumerate((one, two)):
        expected = case(n)
        assert np.array_equal(found.inputs[0], expected.inputs[0])
        for field in ("before", "whole", "bound", "places", "value", "error"):
            got = getattr(found.results[0], field)
            assert np.array_equal(got, getattr(expected.results[0], field)), field


@pytest.mark.parametrize("name", ["float16", "bfloat16", "int8", "uint64", "bool"])
def test_an_element_that_differs_is_found_in_every_dtype(name: str) -> None:
    dtype = dtype_of(name).numpy
    whole = np.zeros(100, dtype)
    got = whole.copy()
    assert result(whole).wrong(got) is None
    got[97] = 1
    assert place(result(whole), got) == 97


def test_values_may_differ_by_the_bound_and_no_more() -> None:
    whole = np.ones(10, np.float32)
    got = whole.copy()
    got[3] += 0.25
    assert result(whole, 0.25).wrong(got) is None
    assert place(result(whole, 0.2), got) == 3


def test_values_that_were_computed_otherwise_have_bounds_of_their_own() -> None:
    whole = np.ones(10, np.float32)
    sharp = replace(
        result(whole, 0.5),
        places=np.array([4]),
        value=np.array([1.0]),
        error=np.array([0.1]),
    )
    got = whole + np.float32(0.3)
    assert place(sharp, got) == 4
    assert str(sharp.wrong(got)) == "is 1.3, expected 1.0 within 0.1"
    got[4] = 1.05
    assert sharp.wrong(got) is None
    got[4] = 1.101
    assert str(sharp.wrong(got)) == "is 1.101, expected 1.0 within 0.1"
    got[2] = 1.501
    assert str(sharp.wrong(got)) == "is 1.501, expected 1.0 within 0.5"


def test_nan_and_infinity_are_right_where_they_are_expected() -> None:
    whole = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32)
    got = whole.copy()
    got[3], got[4] = -0.0, 0.0
    assert result(whole, 1.0).wrong(got) is None
    for n, bad in enumerate([0.0, -np.inf, np.nan, np.inf]):
        got = whole.copy()
        got[n] = bad
        assert place(result(whole, 1.0), got) == n


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"[]x\n",
        b"{}\n",
        b"[" * 100_000,
        reference()[:400],
        reference().replace(b'"bound": 0.0', b'"bound": nil'),
        reference().replace(b'"count": 1000', b'"count": 10e9'),
    ],
)
def test_other_data_are_refused(damaged: bytes) -> None:
    with pytest.raises(InputError, match="invalid reference results"):
        unpack(damaged)
