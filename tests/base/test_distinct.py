"""Equal arrays: of one dtype, shape and bytes."""

from __future__ import annotations

import numpy as np

from tilewright.base.distinct import DistinctArrays


def test_equal_arrays_are_the_first_of_them_and_others_themselves() -> None:
    known = DistinctArrays()
    first = np.arange(1000, dtype=np.float32)
    wide = np.zeros((1000, 2), np.float32)
    wide[:, 0] = first
    equal = [first, first.copy(), np.arange(2000, dtype=np.float32)[:1000], wide[:, 0]]
    assert all(known.first(a) is first for a in equal)
    late = first.copy()
    late[-2] = 0  # between those elements that are looked at first
    others = [late, first.reshape(10, 100), first.view(np.int32), np.array(True)]
    zeros = [np.zeros(1, np.float32), -np.zeros(1, np.float32), np.zeros((0, 3))]
    assert all(known.first(a) is a for a in (*others, *zeros))
    nothing = np.full(3, np.nan)
    assert known.first(nothing) is nothing is known.first(nothing.copy())
