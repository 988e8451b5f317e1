"""The operators of reductions that are known by name: their identities are neutral."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.compute.reducer import STANDARD, arg_reducer, reducer
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import Const, const

INTEGERS = [d for d in vars(dtypes).values() if isinstance(d, DType) and d.is_int]
FLOATS = [dtypes.float64, dtypes.float32, dtypes.float16, dtypes.bfloat16]
OF_BITS = {"and", "or", "xor"}
CASES = [
    *((name, d) for name in sorted(STANDARD) for d in INTEGERS),
    *((name, d) for name in sorted(STANDARD - OF_BITS) for d in FLOATS),
    *((name, dtypes.bool_) for name in sorted(OF_BITS)),
]


def some_of(dtype: DType) -> list[Const]:
    """The ends of the range, and numbers between them."""
    found = {dtype.min, dtype.max, 0, 1, max(dtype.min, -1)}
    return [const(n, dtype) for n in sorted(found)]


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=str)
def test_an_identity_is_neutral_on_both_sides(name, dtype):
    op = reducer(name, dtype)
    for x in some_of(dtype):
        wanted = evaluate(x, {})
        for pair in ((op.identity, (x,)), ((x,), op.identity)):
            (combined,) = op.combine(*pair)
            assert np.array_equal(evaluate(combined, {}), wanted), (x, pair)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
@pytest.mark.parametrize("index", [d for d in INTEGERS if d.bits >= 8], ids=str)
def test_an_identity_changes_no_value_and_index(name, index, last):
    op = arg_reducer(name, dtypes.int8, index, last)
    for value in some_of(dtypes.int8):
        for place in (const(0, index), const(index.max - 1, index)):
            given = (value, place)
            for pair in ((op.identity, given), (given, op.identity)):
                found = op.combine(*pair)
                assert [evaluate(x, {}) for x in found] == [
                    evaluate(x, {}) for x in given
                ]
