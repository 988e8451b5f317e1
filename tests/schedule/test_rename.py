"""rename: loops are called otherwise, and are what they were."""

from __future__ import annotations

import pytest

from tests.schedule.test_matmul import matmul
from tilewright.base.errors import ScheduleError
from tilewright.schedule import Schedule


def test_two_loops_swap_their_names(check_same):
    kernel = matmul(2, 3, 4, epilogue=False)
    s = Schedule(kernel)
    s.annotate("mm.i", "why", "rows")
    s.rename("mm.i", "mm.j", "mm.j", "mm.i", "mm.k", "step")
    assert "for mm.j in 2 {why: 'rows'}:" in repr(
        s.kernel
    ) and "for mm.i in 3:" in repr(s.kernel)
    assert "for step in 4:" in repr(s.kernel)
    check_same(kernel, s, exact=True)


@pytest.mark.parametrize("names, message", [
    (("mm.i",), "rename: these are not pairs"),
    (("mm.i", "a", "mm.i", "b"), "rename: these are not pairs"),
    (("mm.i", "C"), "rename: the name C is taken"),
    (("mm.i", "a", "mm.j", "a"), "rename: the name a is taken"),
])  # fmt: skip
def test_refusals(names, message):
    with pytest.raises(ScheduleError, match=message):
        Schedule(matmul(2, 3, 4, epilogue=False)).rename(*names)
