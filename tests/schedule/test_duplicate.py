"""duplicate: a reader gets a copy of its own, which is then placed by itself."""

from __future__ import annotations

import pytest

from tilewright.base import dtypes
from tilewright.base.errors import ScheduleError
from tilewright.compute.build import map_, reduce_
from tilewright.expr.nodes import Buffer
from tilewright.loops.lower import lower
from tilewright.schedule import Schedule

i32 = dtypes.int32


def two_readers():
    a, t = Buffer("a", (6, 5), i32), Buffer("t", (6,), i32)
    b, c = Buffer("b", (6,), i32), Buffer("c", (5,), i32)
    total = reduce_("total", t, (5,), "add", lambda i, k: a[i, k])
    first = map_("first", b, lambda i: t[i] * 2)
    second = map_("second", c, lambda j: t[j] + t[j + 1])
    return lower("two", [total, first, second], [a, b, c], [b, c])


def test_each_reader_has_its_own(check_same):
    before = two_readers()
    s = Schedule(before)
    assert s.duplicate("t", "second.j") == ("t.copy", "total.i.copy", "total.k.copy")
    check_same(before, s, exact=True)
    s.compute_at("t", "first.i")
    s.compute_at("t.copy", "second.j")
    check_same(before, s, exact=True)
    assert (
        repr(s.kernel)
        == """\
kernel two(a: int32[6, 5]) -> b: int32[6], c: int32[5]:
  for first.i in 6:
    alloc t: int32[1]:
      for total.i in 1:
        t[0] = 0_i32
        for total.k in 5:
          t[0] add= a[first.i, total.k]
      b[first.i] = t[0] * 2_i32
  for second.j in 5:
    alloc t.copy: int32[2]:
      for total.i.copy in 2:
        t.copy[total.i.copy] = 0_i32
        for total.k.copy in 5:
          t.copy[total.i.copy] add= a[second.j + total.i.copy, total.k.copy]
      c[second.j] = t.copy[0] + t.copy[1]"""
    )


def test_nests_in_between_keep_their_order(check_same):
    """The copy of a nest reads what its original read, not what became of that later."""
    s = Schedule(two_readers())
    s.decompose_reduction("t", "total.i")
    s.duplicate("t", "first.i")
    check_same(two_readers(), s, exact=True)
    loops = [line.split()[1] for line in repr(s.kernel).splitlines() if " in 6" in line]
    assert loops == [
        "total.i.init",
        "total.i.init.copy",
        "total.i",
        "total.i.copy",
        "first.i",
    ]


@pytest.mark.parametrize(
    "buffer, loop, message",
    [
        ("t", "total.i", "no statement before that loop computes it"),
        ("b", "second.j", "parameter"),
        ("t", "other.j", "does not use it"),
        ("t", "nowhere", "there is no loop"),
    ],
)
def test_refusals(buffer, loop, message):
    s = Schedule(with_a_stranger() if loop == "other.j" else two_readers())
    with pytest.raises(ScheduleError, match=message):
        s.duplicate(buffer, loop)


def with_a_stranger():
    """A nest that reads nothing of `t`."""
    a, t, b = Buffer("a", (6,), i32), Buffer("t", (6,), i32), Buffer("b", (6,), i32)
    twice = map_("twice", t, lambda i: a[i] * 2)
    other = map_("other", b, lambda j: a[j] + 1)
    return lower("stranger", [twice, other], [a, b], [b])
